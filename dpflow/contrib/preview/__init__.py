"""What a change of code and policies does, for the review of it.

Steps are read from their source, which is not run.
"""
