"""What people look at: words, pictures, and the page, once or live.

It may read the ledger and forecasts; it decides nothing and writes nothing.
"""
