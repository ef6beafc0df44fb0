"""Filters and odometers: pure functions of additive tallies.

They may import costs and curves, and what is fixed in advance; no published rule.
"""
