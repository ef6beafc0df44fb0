"""Filters and odometers: pure functions of additive tallies.

They may import costs, curves and fixed sequences; no published rule.
"""
