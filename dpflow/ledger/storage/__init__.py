"""Where rows and entries are kept: it knows rows, and not what they mean.

Each storage has `load`, one locked read of the rows that keys name, each checked
against the entry that moved it last, and `store`, which writes what entries imply.
"""
