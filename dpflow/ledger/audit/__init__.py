"""Audits of the ledger: is it whole, and what is lost."""
