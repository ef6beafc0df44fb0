"""How good a released number is: the error asked for, and what is known of it after.

Nothing here reads private data: a target is public, and so is a noisy number.
"""
