"""Storages of a ledger: its rows and entries, without their meaning.

A transaction has `load`, one read of the rows that keys name, each checked against the
newest entry about it, and `append`, which writes entries.
"""
