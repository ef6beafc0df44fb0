"""The ledger under audit: is it whole, what did it lose, and what may leave it.

Everything here is a fold of the journal by `journal.follow`, compared with the stored
tables. It reads through `Storage.read` and writes commands only; the bundle for
auditors, and the verifier in it, need the standard library alone.
"""
