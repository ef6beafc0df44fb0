"""Bounding what one person contributes to a table, and the sensitivity that follows.

For frames of pandas and polars, and lazy tables; it knows no ledger.
"""
