"""The witness: a record, outside the ledger, of each charge that the ledger granted.

A restored backup, a copy or a file whose log was lost verifies perfectly; only a record
outside of it shows a missing charge. So the witness gets a line for each entry that
charges or decides something, after its commit, and a granted step starts only after
that. Before each decision the ledger is compared with its witness.
"""
