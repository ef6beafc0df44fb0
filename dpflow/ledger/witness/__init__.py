"""The witness of a ledger: what lies outside of what is restored with the ledger."""
