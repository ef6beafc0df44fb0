"""What works beside the house, and no other room imports.

The demo, the review of a change, budgets carved for another ledger, and the witness in
Prefect. Each is loaded by its name.
"""
