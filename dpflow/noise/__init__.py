"""The noise that a cost declares, drawn by OpenDP.

It knows costs and no ledger. On the ledger of a test another source may stand in.
"""
