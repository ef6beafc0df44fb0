"""Alerts: the thresholds of a policy that settled amounts cross.

An entry that ends a charge, or charges by hand, alerts once for each account: for the
highest threshold that the settled amounts cross with it. Held amounts may return, so
they raise no alert.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from operator import add
from typing import Any

from dpflow.accounting.rules.tally import Tally
from dpflow.accounting.rules.windows import fullest_window
from dpflow.ledger.decision.gates import Gate, gate_at
from dpflow.ledger.entry import Amounts, Sums
from dpflow.ledger.model import accounts_near
from dpflow.ledger.records import Alert, by_identity
from dpflow.ledger.rows import NONE, account_key, split
from dpflow.ledger.state import State
from dpflow.policy import Policy
from dpflow.rounding import number_text

#: Thresholds by dataset or population, rising.
Thresholds = Mapping[str, Sequence[str]]


def thresholds_of(policies: Iterable[Policy]) -> dict[str, list[str]]:
    """Return the thresholds of policies that have some, for the journal."""
    return {policy.dataset: _texts(policy) for policy in policies if policy.alerts}


@by_identity
def _texts(policy: Policy) -> list[str]:
    return [number_text(Fraction(threshold)) for threshold in policy.alerts]


def keys_of_alerts(body: Mapping[str, Any], accounts: Iterable[str]) -> Iterator[str]:
    """Yield the keys of parts that share windows with the accounts of a charge.

    Args:
        body: Of the entry that reserved the charge.
        accounts: The accounts.
    """
    length = body.get("window", 0)
    for name in accounts if length and "alert_at" in body else ():
        near = accounts_near(name, length + 1) if split(name)[4] else ()
        yield from (account_key(other) for _, other in near)


def alerts_of(state: State, posted: Sums, thresholds: Thresholds) -> list[Alert]:
    """Return the alerts of an entry that settles amounts.

    Args:
        state: The state before it.
        posted: What it settles, by account.
        thresholds: Those of the policies of its accounts.
    """
    alerts: list[Alert] = []
    for name, amount in posted.items():
        texts = thresholds.get(split(name)[0], ())
        gate = gate_at(state, name) if texts and any(amount) else None
        if gate is not None:
            before, after, raised = _settled(state, gate, posted)
            raised |= {
                Fraction(alert.threshold)
                for alert in alerts
                if gate.window and split(alert.account)[3:] == split(name)[3:]
            }
            alert = _alert(gate, before, after, raised, texts)
            alerts += [] if alert is None else [alert]
    return alerts


def _alert(
    gate: Gate, before: Tally, after: Tally, raised: set[Fraction], texts: Sequence[str]
) -> Alert | None:
    """Return the alert of the highest threshold that is crossed, if one is."""
    for text in reversed(texts):
        threshold = Fraction(text)
        if threshold <= max(raised, default=0) or gate.uses(before, threshold):
            return None
        if gate.uses(after, threshold):
            return Alert(
                dataset=gate.dataset,
                account=gate.id,
                gate=gate.kind,
                name=gate.name,
                threshold=text,
                used_fraction=gate.used_share(after) or 0.0,
            )
    return None


def _settled(
    state: State, gate: Gate, posted: Sums
) -> tuple[Tally, Tally, set[Fraction]]:
    """Return what was settled before and is settled after, and the alerts so far.

    Of a part of windows: before, in the windows next to the part, for a window that
    moves on is no other usage; after, in the fullest window of the part; and the alerts
    of all parts that share a window with it.
    """
    zero, window = gate.rule.zero(), gate.window
    place, length = (0, 1) if window is None else (window.place, window.length)
    near = accounts_near(gate.id, length + 1) if window else ((0, gate.id),)
    used, later, raised = dict[int, Tally](), dict[int, Tally](), set[Fraction]()
    for at, name in near:
        row = state.account(name)
        settled: Amounts = zero.amounts if row is None else row.settled
        used[at] = Tally(settled)
        later[at] = Tally((*map(add, settled, posted.get(name, zero.amounts)),))
        if row is not None and abs(at - place) < length:
            raised |= {Fraction(text) for text in row.alerts}
    if window is None:
        return used[0], later[0], raised
    beside = [
        sum((used.get(at, zero) for at in range(start, start + length)), zero)
        for start in (place - length, place + 1)
    ]
    fullest = fullest_window(later, place, length)
    return max(beside, key=lambda tally: gate.used_share(tally) or 0.0), fullest, raised


def noted(alerts: Iterable[Alert]) -> Mapping[str, Any]:
    """Return the fact of an entry that says which thresholds it crosses."""
    crossed = {alert.account: [alert.threshold] for alert in alerts}
    return {"alerts": crossed} if crossed else NONE
