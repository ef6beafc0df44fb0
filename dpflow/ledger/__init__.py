"""The durable ledger: one journal for all datasets, and the tallies that it implies.

Commands come with everything that their decision needs; the shell loads the keys that
they read, decides without input or output, and appends the entries, in which
`journal.after` says what each key is. What people see and what auditors check are folds
over the same entries. It knows neither Prefect nor the guard.
"""

from dpflow.ledger.ledger import Ledger
from dpflow.ledger.opening import LOCK_NAME, create_ledger, open_ledger, pin_ledger
from dpflow.ledger.storage.base import is_postgres

__all__ = [
    "LOCK_NAME",
    "Ledger",
    "create_ledger",
    "is_postgres",
    "open_ledger",
    "pin_ledger",
]
