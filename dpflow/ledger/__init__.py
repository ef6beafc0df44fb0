"""The durable ledger: one journal for each dataset, and the tallies that it implies.

Commands come with everything that their decision needs; the shell loads the rows that
they lead to, decides without input or output, and stores the entries with the rows that
`journal.follow` makes of them. What people see and what auditors check are folds over
the same entries. It knows neither Prefect nor the guard.
"""

from dpflow.ledger.ledger import Ledger
from dpflow.ledger.opening import (
    LOCK_NAME,
    create_ledger,
    is_postgres,
    open_ledger,
    pin_ledger,
    pinned_id,
    roles_script,
    sqlite_path,
    storage_at,
)

__all__ = [
    "LOCK_NAME",
    "Ledger",
    "create_ledger",
    "is_postgres",
    "open_ledger",
    "pin_ledger",
    "pinned_id",
    "roles_script",
    "sqlite_path",
    "storage_at",
]
