"""One page about a ledger: what is spent and left, why steps were refused, and stamps.

It is made of public facts only. No value of a release is read for it, no private
argument and no text of an exception; digests stand for values.
"""
