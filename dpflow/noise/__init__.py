"""Declared noise of costs, drawn by OpenDP.

It imports costs and no ledger. On the ledger of a test another source may replace it.
"""
