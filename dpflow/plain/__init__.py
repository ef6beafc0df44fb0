"""The ledger in plain tables.

State stands in rows that each transaction updates in place. The same transaction
appends an entry to the dataset's journal, with the change of every account.
"""
