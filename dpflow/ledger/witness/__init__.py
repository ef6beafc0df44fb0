"""The witness: what remembers, outside the ledger, each charge that it granted.

A restored backup, a copy or a file whose log was lost verifies perfectly; only
something outside of it can tell that it forgot a charge. So each entry that charges or
closes something is told to a witness after its commit, and a granted step starts only
after that. Before each decision the ledger is held against what the witness was told.
"""
