"""Tables of a ledger: rows, statements and the two databases."""
