"""Mechanisms: the noise that a cost declares, drawn by OpenDP."""
