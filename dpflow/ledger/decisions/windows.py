"""Windows: what the parts around a part of a divided dataset have used.

Each part has one account, which the terms of its dataset share. Its gate compares the
largest sum over consecutive parts with the budget (docs/derivations/ledger.md#windows).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from operator import add
from typing import Any, NamedTuple, cast

from dpflow.accounting import Filter
from dpflow.accounting.rules.tally import Tally
from dpflow.accounting.rules.tightening import admits_less
from dpflow.accounting.rules.windows import fullest_window
from dpflow.interrupts import without_interrupts
from dpflow.ledger.account_ids import split
from dpflow.ledger.canonical import canonical
from dpflow.ledger.decisions.lifetimes import is_charged
from dpflow.ledger.decisions.pinned_rules import rule_of
from dpflow.ledger.tables.loaded import Rows
from dpflow.ledger.tables.rows import Account
from dpflow.periods import name_at, position_of
from dpflow.policy.windows import window_length

#: Fields in which all terms with windows agree.
_EQUAL = ("window", "partition", "unit", "relation", "lifetime")


class PartWindows(NamedTuple):
    """The windows that contain a part.

    Attributes:
        length: Number of parts of a window.
        position: Of the part in the calendar.
        used: Amounts of charged parts around it, by place.
        overdrawn: Places of those that admit nothing more.
    """

    length: int
    position: int
    used: tuple[tuple[int, Tally], ...] = ()
    overdrawn: tuple[int, ...] = ()

    def sum_others(self, own: Tally, added: Mapping[int, Tally]) -> Tally:
        """Return what the other parts of the fullest window use.

        Args:
            own: What the part itself has used.
            added: What the same step adds, by place.
        """
        amounts, zero = dict(self.used), own.times(0)
        for position, amount in added.items():
            amounts[position] = amounts.get(position, zero) + amount
        amounts[self.position] = own
        return fullest_window(amounts, self.position, self.length) - own


def window_of(pinned: Mapping[str, Any], part: str) -> PartWindows | None:
    """Return the windows of a part; None if the copy of the policy has none."""
    length = window_length(pinned) if part else 0
    return PartWindows(length, position_of(part)) if length else None


def use_of(row: Account) -> Tally:
    """Return what is settled and held on an account."""
    return Tally((*map(add, row.settled, row.held),))


def with_use_near(
    rows: Rows, account: str, window: PartWindows, ahead: int = 0
) -> PartWindows:
    """Return the windows of a part with what was charged around it.

    Args:
        rows: Rows with the accounts of these parts.
        account: Of the part.
        window: Its windows.
        ahead: Number of further parts, after those that share a window with it.
    """
    near = accounts_near(rows.account_rows, account, window.length, ahead)
    used = ((position, use_of(row)) for position, row in near.items())
    overdrawn = (position for position, row in near.items() if row.overdrawn)
    return window._replace(used=tuple(used), overdrawn=tuple(overdrawn))


def accounts_near(
    accounts: Mapping[str, Account], account: str, length: int, ahead: int = 0
) -> dict[int, Account]:
    """Return the charged accounts that share a window with a part, by place.

    Args:
        accounts: Accounts by id.
        account: The account of the part.
        length: Number of parts of a window.
        ahead: Number of further parts, after those.
    """
    near = name_near(account, length, ahead)
    return {position: accounts[name] for position, name in near if name in accounts}


def window_total(rows: Rows, account: str) -> Tally | None:
    """Return the sum of a part's fullest window; None if its term has no windows."""
    book, number, _, _, part = split(account)
    term, row = rows.term(book, number), rows.account(account)
    window = window_of(term.fields["pinned"], part) if term else None
    if window is None or row is None:
        return None
    own = use_of(row)
    return own + with_use_near(rows, account, window).sum_others(own, {})


def continuation_problem(rows: Rows, book: str, pins: Mapping[str, Any]) -> str:
    """Say why a copy cannot open a term next to charged windows; "" if it can.

    Args:
        rows: Rows with all terms of the book and their whole accounts.
        book: Its name.
        pins: What the new term would pin.
    """
    charged = [term for term in rows.terms(book) if is_charged(rows, term)]
    before = charged[-1].fields["pinned"] if charged else {}
    if not charged or not (window_length(before) or window_length(pins)):
        return ""
    fields = [name for name in _EQUAL if before.get(name) != pins.get(name)]
    fields += ["lifetime"] if "lifetime" in pins and not fields else []
    if not fields:
        texts = (canonical({"role": "filter", **c["filter"]}) for c in (pins, before))
        new, old = (cast("Filter", rule_of(text)) for text in texts)
        fields = [] if admits_less(new, old) else ["filter", "budget"]
    if not fields:
        return ""
    return (
        "all terms share the accounts of windows, so that a further term has an equal "
        "filter, window, partition, unit and relation, no lifetime, and no higher "
        f"budget. Undo the edit of {' and '.join(fields)}."
    )


@lru_cache(maxsize=512)
def name_near(account: str, length: int, ahead: int = 0) -> tuple[tuple[int, str], ...]:
    """Return places and accounts of all parts that share a window with a part.

    None for an account of no part by time; a step that names one is refused.

    Args:
        account: Of the part, or of a flow in it.
        length: Number of parts of a window.
        ahead: Number of further parts, after those.
    """
    part, (book, _, path) = split(account)[4], account.partition("#")
    number, _, path = path.partition("/")
    tail = path[len(f"partition/{part}") :]
    try:
        position = position_of(part)
    except without_interrupts(ValueError, TypeError):
        return ()
    positions = range(position - length + 1, position + length + ahead)
    parts = ((position, name_at(part, position)) for position in positions)
    begin = f"{book}#{number}/partition/"
    return tuple((position, f"{begin}{name}{tail}") for position, name in parts if name)
