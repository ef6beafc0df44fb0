"""One page about a ledger: spent and remaining budgets, refusals, and stamps.

It contains public facts only. No value of a release is read for it, no private
argument and no text of an exception; digests stand for values.
"""
