"""What people ask of a ledger: answers that are folds over what a storage reads.

Current state comes from the rows of whole books, a history from the entries of their
journals. Nothing here decides, writes or remembers anything. It knows no database and
no SQL, and imports neither the shell's storages nor what audits the ledger.
"""

from dpflow.ledger.views.accounts import accounts, alerts, open_reservations, terms
from dpflow.ledger.views.entries import history
from dpflow.ledger.views.releases import count_refusals, halts, refusal_of_run, refusals
from dpflow.ledger.views.spending import usage

__all__ = [
    "accounts",
    "alerts",
    "count_refusals",
    "halts",
    "history",
    "open_reservations",
    "refusal_of_run",
    "refusals",
    "terms",
    "usage",
]
