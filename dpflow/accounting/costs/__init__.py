"""Costs of steps: frozen, exact descriptions of mechanisms.

A cost is public information, fixed before any data is read. It has no price: `curves`
and each rule compute prices. No module here imports from the other packages of
`accounting`, except for the cells of steps that may end early.
"""
