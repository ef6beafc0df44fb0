"""Who spent a budget, and which charges did not go as most do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dpflow.accounting.rules.rule import Filter
from dpflow.accounting.rules.tally import Tally
from dpflow.ledger.entry import Entry
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.records import UnusualSteps
from dpflow.ledger.storage.tables import Reading
from dpflow.ledger.views.accounts import governing, term_gates, waiting
from dpflow.ledger.views.charges import charges, window

#: So many entries of a dataset's newest term tell of its newest steps.
RECENT = 20_000
#: What the journal says of a step that called nothing of dpflow to draw its noise.
OWN_NOISE = ("own", "self-declared")
_DREW, _FORFEITED = "drew its own noise", "was forfeited"
_HAVE_BUDGETS = ("dataset", "partition", "population")


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


#: What charges can be told apart by: their facts, and their newest entry.
GROUPS: Mapping[str, Callable[[Mapping[str, Any], Entry], str]] = {
    "flow": lambda body, _: str(body.get("flow") or "-"),
    "step": lambda body, _: str(body.get("step") or body.get("reason") or "-"),
    "week": lambda _, entry: _week(entry.at),
    "release": lambda body, _: str(body.get("release_key") or "-"),
    "who": lambda body, entry: str(body.get("who") or entry.writer),
}


def spending(
    ledger: Ledger, dataset: str, by: tuple[str, ...], *, term: int
) -> list[Spending]:
    """Return what used the budgets of one term of a dataset, the largest first.

    Args:
        ledger: The ledger to read.
        dataset: The dataset.
        by: Names of `GROUPS`.
        term: Number of the term.
    """
    groups: dict[tuple[str, tuple[str, ...]], tuple[Tally, int, str, str]] = {}
    with ledger.storage.read() as reading:
        whole = f"{dataset}#{term}"
        rules = {
            gate.id: gate.rule
            for gate in (term_gates(reading, whole) if term else {}).values()
            if gate.kind in _HAVE_BUDGETS and isinstance(gate.rule, Filter)
        }
        for charge in charges(reading, whole):
            at, body = charge.last.at, charge.body
            group = tuple(GROUPS[name](body, charge.last) for name in by)
            for account in rules.keys() & charge.amounts.keys():
                zero = rules[account].zero(), 0, at, at
                total, count, first, last = groups.get((account, group), zero)
                total = total + Tally(charge.amounts[account])
                dates = min(first, at), max(last, at)
                groups[account, group] = (total, count + 1, *dates)
    found = [
        Spending(
            account=account,
            group=group,
            charges=count,
            amount=rules[account].named(total),
            used_fraction=rules[account].used_fraction(total),
            last=last,
            weeks=(_week(first), _week(last)),
        )
        for (account, group), (total, count, first, last) in groups.items()
    ]
    return sorted(found, key=lambda each: (-each.used_fraction, each.group))


def _week(at: str) -> str:
    year, week, _ = datetime.fromisoformat(at).isocalendar()
    return f"{year}-W{week:02}"


# Unusual steps


@dataclass(frozen=True, slots=True)
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


def unusual_steps(ledger: Ledger, dataset: str, *, most: int = RECENT) -> UnusualSteps:
    """Count the steps of a newest term that drew their own noise, failed or got lost.

    Args:
        ledger: The ledger to read.
        dataset: The dataset; nothing is counted if it has no term yet.
        most: Read so many entries of its term, the newest.
    """
    with ledger.storage.read() as reading:
        term = governing(reading, dataset)
        if term is None:
            return UnusualSteps()
        start, older = window(reading, term.whole, most)
        found = [what for what, *_ in _unusual(ledger, reading, term.whole, start)]
    own_noise, forfeited = found.count(_DREW), found.count(_FORFEITED)
    return UnusualSteps(
        own_noise=own_noise,
        failed=len(found) - own_noise - forfeited,
        forfeited=forfeited,
        older=older,
    )


def unusual(ledger: Ledger, dataset: str, term: int) -> list[Unusual]:
    """Return the steps that did not go as most do, the newest first.

    Args:
        ledger: The ledger to read.
        dataset: A dataset or population.
        term: Number of one of its terms.
    """
    times: dict[tuple[str, str, str | None], tuple[int, str, str]] = {}
    with ledger.storage.read() as reading:
        for what, made, at in _unusual(ledger, reading, f"{dataset}#{term}"):
            group = what, str(made.body.get("step") or "-"), made.body.get("flow")
            count, first, last = times.get(group, (0, at, at))
            times[group] = count + 1, min(first, at), max(last, at)
    found = [Unusual(*group, *seen) for group, seen in times.items()]
    return sorted(found, key=lambda each: each.last, reverse=True)


def _unusual(
    ledger: Ledger, reading: Reading, whole: str, start: int = 0
) -> Iterator[tuple[str, Entry, str]]:
    """Yield how unusual charges of a term that ended after an entry, or never, went.

    With each come the entry that began it, and when it ended.
    """
    for charge in charges(reading, whole, start):
        if what := _way(charge.last):
            yield what, charge.made, charge.last.at
    for each, alive in waiting(ledger, reading):
        if not alive and whole in each.held:
            yield _FORFEITED, each.made, each.made.at


def _way(entry: Entry) -> str:
    """Return the unusual way in which a charge ended; "" if it was none."""
    if entry.kind == "forfeit":
        return _FORFEITED
    if entry.kind != "settle":
        return ""
    if entry.body.get("outcome") == "failed":
        return f"failed: {entry.body.get('error_type') or 'error'}"
    return _DREW if entry.body.get("noise") in OWN_NOISE else ""
