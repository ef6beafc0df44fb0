"""The durable ledger: rows that each transaction updates, and a journal of changes.

A command loads the rows that its decision reads, decides without input or output, and
writes rows and journal entries in one transaction. What people see comes from the same
rows, in one snapshot. It knows neither Prefect nor the guard.
"""

from dpflow.ledger.account_ids import split as split_account
from dpflow.ledger.canonical import digest
from dpflow.ledger.decisions.charges_by_hand import Posted
from dpflow.ledger.decisions.lifetimes import TermView
from dpflow.ledger.decisions.policy_changes import Proposal
from dpflow.ledger.decisions.repairs import Loss
from dpflow.ledger.decisions.terms import view_policy
from dpflow.ledger.decisions.windows import PartWindows
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.opening import LOCK_NAME, create_ledger, open_ledger, pin_ledger
from dpflow.ledger.tables.errors import UNREADABLE, is_postgres
from dpflow.ledger.tables.rows import Charge, PeopleStore, Term
from dpflow.ledger.tables.transaction import VERSION

__all__ = [
    "LOCK_NAME",
    "UNREADABLE",
    "VERSION",
    "Charge",
    "Ledger",
    "Loss",
    "PartWindows",
    "PeopleStore",
    "Posted",
    "Proposal",
    "Term",
    "TermView",
    "create_ledger",
    "digest",
    "is_postgres",
    "open_ledger",
    "pin_ledger",
    "split_account",
    "view_policy",
]
