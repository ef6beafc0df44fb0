"""The durable ledger: rows that each transaction updates, and a journal beside them.

A command loads the rows that its decision reads, decides without input or output, and
writes rows and journal entries in one transaction. What people see comes from the same
rows, in one snapshot. It knows neither Prefect nor the guard.
"""

from dpflow.ledger.ledger import Ledger
from dpflow.ledger.opening import LOCK_NAME, create_ledger, open_ledger, pin_ledger
from dpflow.ledger.tables.errors import is_postgres
from dpflow.ledger.tables.rows import PeopleStore

__all__ = [
    "LOCK_NAME",
    "Ledger",
    "PeopleStore",
    "create_ledger",
    "is_postgres",
    "open_ledger",
    "pin_ledger",
]
