"""Sequences of steps that are fixed in advance, composed as a whole.

Optimal composition, loss distributions, sequences, stops of one step. It may import
costs, curves and the shape of a rule.
"""
