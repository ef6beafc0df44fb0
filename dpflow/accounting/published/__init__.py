"""Rules of the papers, kept to compare with; a policy may still name them.

They are loaded by their names only: nothing else imports them.
"""
