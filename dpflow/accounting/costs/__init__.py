"""What a step does: frozen, exact descriptions of mechanisms.

A cost is public information, known before any data is read. It says nothing of what it
costs: that is the business of `curves`, and of each rule. Nothing here imports from the
other rooms of `accounting`, but for the cells of steps that may end early.
"""
