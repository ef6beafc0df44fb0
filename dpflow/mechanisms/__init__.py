"""Mechanisms: the noise that a cost declares, drawn by OpenDP, and what is made of it.

They know costs and noise, and no ledger: what decides a cost comes back as a cell.
"""
