"""Who spent a budget: the charges of an account, added up by flow, step or week.

And which of them did not go as most do: the body drew its own noise, failed, or was
never settled.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dpflow.accounting.tally import Tally
from dpflow.accounting.theorem import Filter
from dpflow.ledger.account import Account, account_from_row, read_account
from dpflow.ledger.database import Database, Row
from dpflow.ledger.kernel import Ledger
from dpflow.ledger.pages import entries

#: Entries that post usage.
_POSTED = ("settle", "forfeit", "amend", "prior", "repair")
#: Entries that give back what is held.
_RETURNED = ("void", "seal")
_HAVE_BUDGETS = ("dataset", "partition", "population")
#: What the journal says of a step that called nothing of dpflow to draw its noise.
OWN_NOISE = ("own", "self-declared")
_FORFEITED = "was forfeited"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """What one group of charges used of an account.

    Attributes:
        group: What the charges have in common, such as flow and step.
        charges: How many there are.
        amount: Their sum in the theorem's own currency.
        used_fraction: The share of the threshold that the sum would use alone.
        last: When the newest was posted; a label.
        weeks: The ISO weeks of the oldest and of the newest.
    """

    account: str
    group: tuple[str, ...]
    charges: int
    amount: Mapping[str, str]
    used_fraction: float
    last: str
    weeks: tuple[str, str]


#: What charges can be told apart by: each takes a journal row and its body.
GROUPS: Mapping[str, Callable[[Row, Mapping[str, Any]], str]] = {
    "flow": lambda _, body: str(body.get("flow") or "-"),
    "step": lambda _, body: str(body.get("step") or body.get("because") or "-"),
    "week": lambda row, _: _week(row["at"]),
    "release": lambda _, body: str(body.get("release_key") or "-"),
    "who": lambda row, body: str(body.get("who") or row["writer"]),
}


def spending(
    ledger: Ledger, dataset: str, by: tuple[str, ...], *, term: int | None = None
) -> list[Spending]:
    """Return what used the budgets of one term of a dataset, the largest first.

    Args:
        ledger: The ledger to read.
        dataset: The dataset.
        by: Names of `GROUPS`.
        term: Number of the term. Default: the newest.
    """
    found: list[Spending] = []
    with ledger.database.read() as session:
        rows = session.rows("list_accounts", dataset=dataset)
    if term is None:
        term = max((row["term"] for row in rows), default=0)
    for row in rows:
        if row["term"] == term and row["kind"] in _HAVE_BUDGETS:
            found += _of_account(ledger.database, account_from_row(row), by)
    return sorted(found, key=lambda each: (-each.used_fraction, each.group))


def _of_account(
    database: Database, account: Account, by: tuple[str, ...]
) -> list[Spending]:
    rule = account.rule
    if not isinstance(rule, Filter):
        return []
    held: dict[str, Mapping[str, Any]] = {}
    groups: dict[tuple[str, ...], _Group] = {}
    for row in entries(database, account.id, account.seq):
        if row["kind"] == "reserve":
            held[row["reservation"]] = row
        elif row["kind"] == "draw":
            held[row["reservation"]] = _without(held[row["reservation"]], row)
        elif row["kind"] in (*_POSTED, *_RETURNED):
            held.pop(row["reservation"], None)
            if row["kind"] not in _RETURNED:
                _add(groups, row, by, rule)
    for row in held.values():
        _add(groups, row, by, rule)
    return [
        Spending(
            account=account.id,
            group=name,
            charges=group.charges,
            amount=rule.named(group.total),
            used_fraction=rule.used_fraction(group.total),
            last=group.last,
            weeks=(_week(group.first), _week(group.last)),
        )
        for name, group in groups.items()
    ]


@dataclass(slots=True)
class _Group:
    """What some charges add up to."""

    total: Tally
    charges: int
    first: str
    last: str


def _add(
    groups: dict[tuple[str, ...], _Group],
    row: Mapping[str, Any],
    by: tuple[str, ...],
    rule: Filter,
) -> None:
    body, at = json.loads(row["body"]), row["at"]
    name = tuple(GROUPS[each](row, body) for each in by)
    group = groups.setdefault(name, _Group(rule.zero(), 0, at, at))
    group.total = group.total + Tally.from_text(row["amount"])
    group.charges += 1
    group.first, group.last = min(group.first, at), max(group.last, at)


def _without(preflight: Mapping[str, Any], draw: Row) -> Mapping[str, Any]:
    """Return the entry of a preflight, less what a step has drawn of it."""
    rest = Tally.from_text(preflight["amount"]) - Tally.from_text(draw["amount"])
    return {**dict(preflight), "amount": rest.to_text()}


def _week(at: str) -> str:
    year, week, _ = datetime.fromisoformat(at).isocalendar()
    return f"{year}-W{week:02}"


# Unusual steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Unusual:
    """Charges of one step that went the same unusual way.

    Attributes:
        what: "drew its own noise", "failed: TYPE" or "was forfeited".
        times: How many there are.
        first: When the oldest was posted or, if it never was, reserved; a label.
        last: When the newest was.
    """

    what: str
    step: str
    flow: str | None
    times: int
    first: str
    last: str


def unusual(ledger: Ledger, dataset: str, term: int) -> list[Unusual]:
    """Return the steps that did not go as most do, the newest first.

    Every charge of a dataset posts to its own account, so that one is read.

    Args:
        ledger: The ledger to read.
        dataset: A dataset or population.
        term: Number of one of its terms.
    """
    with ledger.database.read() as session:
        account = read_account(session, f"{dataset}#{term}")
        waiting = session.rows("open_reservations")
    if account is None:
        return []
    found: dict[tuple[str, str, str | None], list[str]] = {}
    for row in entries(ledger.database, account.id, account.seq):
        body = json.loads(row["body"])
        what = _unusual(row["kind"], body)
        if what:
            _note(found, what, body.get("step"), body.get("flow"), row["at"])
    for row in waiting:
        mine = account.id in json.loads(row["accounts"])
        if mine and not ledger.owners.alive(row["owner"]):
            flow = json.loads(row["body"]).get("flow")
            _note(found, _FORFEITED, row["step"], flow, row["at"])
    return sorted(
        (
            Unusual(
                what=what,
                step=step,
                flow=flow,
                times=len(times),
                first=min(times),
                last=max(times),
            )
            for (what, step, flow), times in found.items()
        ),
        key=lambda each: each.last,
        reverse=True,
    )


def _unusual(kind: str, body: Mapping[str, Any]) -> str:
    """Say what was unusual about a charge's end; "" if nothing was."""
    if kind == "forfeit":
        return _FORFEITED
    if kind != "settle":
        return ""
    if body.get("outcome") == "failed":
        return f"failed: {body.get('error_type') or 'error'}"
    return "drew its own noise" if body.get("noise") in OWN_NOISE else ""


def _note(
    found: dict[tuple[str, str, str | None], list[str]],
    what: str,
    step: str | None,
    flow: str | None,
    at: str,
) -> None:
    found.setdefault((what, str(step or "-"), flow), []).append(at)
