"""What people ask of a ledger: answers from its rows, in one snapshot each.

Nothing here decides or writes anything. Each function takes an open ledger or a reading
(`open_reading`), on which several functions see one moment.
"""

from dpflow.plain.views.accounts import accounts, alerts, open_reservations, terms
from dpflow.plain.views.entries import history
from dpflow.plain.views.reading import Reading, open_reading
from dpflow.plain.views.releases import count_refusals, halts, refusal_of_run, refusals
from dpflow.plain.views.spending import usage

__all__ = [
    "Reading",
    "accounts",
    "alerts",
    "count_refusals",
    "halts",
    "history",
    "open_reading",
    "open_reservations",
    "refusal_of_run",
    "refusals",
    "terms",
    "usage",
]
