"""Rules of the papers, for comparison; a policy may name them.

They are loaded by their names only: no other module imports them.
"""
