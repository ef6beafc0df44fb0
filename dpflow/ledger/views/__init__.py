"""What people ask of a ledger: answers from its rows, in one snapshot each.

Nothing here decides or writes anything. Each function takes an open ledger or a reading
(`open_reading`), on which several functions see one moment.
"""

from dpflow.ledger.views.accounts import accounts, alerts, open_reservations
from dpflow.ledger.views.entries import history
from dpflow.ledger.views.reading import Reading, open_reading
from dpflow.ledger.views.releases import count_refusals, halts, refusal_of_run, refusals
from dpflow.ledger.views.spending import usage
from dpflow.ledger.views.terms import terms

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
