"""Alerts: thresholds of use that settled amounts cross, each once.

An alert is raised in the entry that ends a charge or charges by hand, for the highest
threshold that its accounts crossed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cache
from typing import Any

from dpflow.accounting.rules.tally import Tally
from dpflow.ledger.account_ids import split
from dpflow.ledger.decisions.gates import Gate, gate_at
from dpflow.ledger.decisions.windows import accounts_near
from dpflow.ledger.requests import Alert
from dpflow.ledger.tables.loaded import Rows
from dpflow.ledger.tables.rows import Account
from dpflow.periods import place_of
from dpflow.rounding import number_from_text

_NOTHING = Fraction(0)


def raise_alerts(
    rows: Rows,
    accounts: Mapping[str, Account],
    thresholds: Mapping[str, Sequence[str]],
) -> tuple[list[Alert], dict[str, Account]]:
    """Return the alerts that accounts raise, and the accounts after them.

    Args:
        rows: Rows of the ledger, with the parts that share windows with the accounts.
        accounts: Accounts after the entry.
        thresholds: By dataset, the thresholds of its policy, the lowest first.
    """
    alerts, after = list[Alert](), dict(accounts)
    for name, account in accounts.items():
        limits = thresholds.get(split(name)[0], ())
        state: Any = rows
        gate = gate_at(state, name)
        if not limits or gate is None or not any(account.settled):
            continue
        used, highest = find_settled(rows, after, gate, account)
        before, crossed = find_settled_next_to(rows, gate), ""
        for text in limits:
            threshold = read_threshold(text)
            if threshold <= highest or gate.uses(before, threshold):
                continue
            if not gate.uses(used, threshold):
                break
            crossed = text
        if not crossed:
            continue
        after[name] = account._replace(alerted=crossed)
        alerts.append(
            Alert(
                dataset=gate.dataset,
                account=name,
                gate=gate.kind,
                name=gate.name,
                threshold=crossed,
                used_fraction=gate.used_share(used) or 0.0,
            )
        )
    return alerts, after


def find_settled(
    rows: Rows, after: Mapping[str, Account], gate: Gate, account: Account
) -> tuple[Tally, Fraction]:
    """Return what an account or its fullest window has settled, and its last alert.

    Args:
        rows: Rows of the ledger.
        after: Accounts that the entry changes, as they are after it.
        gate: Gate of the account.
        account: The account after the entry.
    """
    own, window = Tally(account.settled), gate.window
    alerted = [account.alerted]
    if window is not None:
        used = []
        for place, name in accounts_near(account.id, window.length):
            near = after.get(name) or rows.account(name)
            if near is not None and place != place_of(gate.partition):
                used.append((place, Tally(near.settled)))
                alerted.append(near.alerted)
        own = own + window._replace(used=tuple(used)).rest(own, {})
    highest = max((read_threshold(text) for text in alerted if text), default=_NOTHING)
    return own, highest


def find_settled_next_to(rows: Rows, gate: Gate) -> Tally:
    """Return what the fuller of the windows next to a part has settled.

    A window that moves on to the next part is no other usage. Zero without windows.
    """
    zero, window = gate.rule.zero(), gate.window
    if window is None:
        return zero
    settled = {
        place: Tally(near.settled)
        for place, name in accounts_near(gate.id, window.length + 1)
        if (near := rows.account(name)) is not None
    }
    sums = (
        sum((settled.get(n, zero) for n in range(first, first + window.length)), zero)
        for first in (window.place - window.length, window.place + 1)
    )
    return max(sums, key=lambda tally: gate.used_share(tally) or 0.0)


@cache
def read_threshold(text: str) -> Fraction:
    """Return a threshold of use as a number."""
    return Fraction(number_from_text(text))
