"""Decisions of the ledger: pure functions from rows to changes and entries."""
