"""Who spent a budget, how it was used up, and which charges were unusual."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from dpflow.accounting.rules.rule import Filter
from dpflow.accounting.rules.tally import Tally
from dpflow.ledger.decision.gates import Gate
from dpflow.ledger.entry import Entry
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.records import Usage
from dpflow.ledger.storage.tables import ENDLESS, Reading
from dpflow.ledger.views.accounts import newest_gates, term_gates, waiting
from dpflow.ledger.views.runs import (
    JournalCharge,
    bodies,
    charges,
    newest_numbers,
)

#: What the journal says of a step that called nothing of dpflow to draw its noise.
OWN_NOISE = ("own", "self-declared")
#: Facts by which charges can be grouped.
GROUPS = ("flow", "step", "week", "release", "who")
_HAVE_BUDGETS = ("dataset", "partition", "population")
_FORFEITED = "forfeited"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """What one group of charges used of an account.

    Attributes:
        group: What the charges have in common, such as flow and step.
        charges: How many there are.
        amount: Their sum in the theorem's own currency.
        used_fraction: The share of the threshold that the sum would use alone.
        last: When the newest was posted; a label.
    """

    account: str
    group: tuple[str, ...]
    charges: int
    amount: Mapping[str, str]
    used_fraction: float
    last: str


@dataclass(frozen=True, slots=True)
class Unusual:
    """Charges of one step that went the same unusual way.

    Attributes:
        what: "own noise", "failed: TYPE" or "forfeited".
        times: How many there are.
        last: When the newest was posted or, if it never was, reserved; a label.
    """

    what: str
    step: str
    flow: str | None
    times: int
    last: str


def spending(
    ledger: Ledger, dataset: str, by: tuple[str, ...], *, term: int
) -> tuple[list[Spending], list[Unusual]]:
    """Return what used the budgets of one term of a dataset, and its unusual steps.

    Args:
        ledger: The ledger to read.
        dataset: A dataset or population.
        by: Names of `GROUPS`.
        term: Number of the term; nothing was charged in term 0.

    Returns:
        The groups, the largest first; and the steps that drew their own noise, failed
        or were forfeited, the newest first.
    """
    groups: dict[tuple[str, tuple[str, ...]], tuple[Tally, int, str]] = {}
    ways = defaultdict[tuple[str, str, str | None], list[str]](list)
    whole = f"{dataset}#{term}"

    def note(way: str, made: Entry, at: str) -> None:
        if way:
            ways[way, made.body.get("step") or "-", made.body.get("flow")].append(at)

    with ledger.storage.read() as reading:
        rules = {
            gate.id: gate.rule
            for gate in (term_gates(reading, whole) if term else {}).values()
            if gate.kind in _HAVE_BUDGETS and isinstance(gate.rule, Filter)
        }
        for charge in charges(reading, whole):
            note(_way(charge.last), charge.made, charge.last.at)
            facts = _facts(charge)
            group = tuple(facts[name] for name in by)
            for account in rules.keys() & charge.amounts.keys():
                none = rules[account].zero(), 0, ""
                total, count, last = groups.get((account, group), none)
                total = total + Tally(charge.amounts[account])
                last = max(last, charge.last.at)
                groups[account, group] = total, count + 1, last
        for open_charge, alive in waiting(ledger, reading):
            if not alive and whole in open_charge.held:
                note(_FORFEITED, open_charge.made, open_charge.made.at)
    found = [
        Spending(
            account=account,
            group=group,
            charges=count,
            amount=rules[account].named(total),
            used_fraction=rules[account].used_fraction(total),
            last=last,
        )
        for (account, group), (total, count, last) in groups.items()
    ]
    steps = [Unusual(*way, len(ats), max(ats)) for way, ats in ways.items()]
    return (
        sorted(found, key=lambda each: (-each.used_fraction, each.group)),
        sorted(steps, key=lambda step: step.last, reverse=True),
    )


def _facts(charge: JournalCharge) -> dict[str, str]:
    """Return the facts of a charge by the names of `GROUPS`."""
    body, entry = charge.body, charge.last
    year, week, _ = datetime.fromisoformat(entry.at).isocalendar()
    facts = {
        "flow": body.get("flow"),
        "step": body.get("step") or body.get("reason"),
        "week": f"{year}-W{week:02}",
        "release": body.get("release_key"),
        "who": body.get("who") or entry.writer,
    }
    return {name: str(fact or "-") for name, fact in facts.items()}


def _way(entry: Entry) -> str:
    """Return the unusual way in which a charge ended; "" if it was usual."""
    if entry.kind == "forfeit":
        return _FORFEITED
    if entry.kind != "settle":
        return ""
    if entry.body.get("outcome") == "failed":
        return f"failed: {entry.body.get('error_type') or 'error'}"
    return "own noise" if entry.body.get("noise") in OWN_NOISE else ""


# Use after each entry


def usage(
    ledger: Ledger, dataset: str, names: Collection[str], *, most: int
) -> dict[str, list[Usage]]:
    """Return how gates of a dataset's newest term were used up, by account.

    Args:
        ledger: The ledger to read.
        dataset: A dataset or population.
        names: The accounts.
        most: About half the number of points of each, spread evenly with the newest
            among them, and the largest number of refusals.

    Returns:
        The points of each account, oldest first.
    """
    with ledger.storage.read() as reading:
        refused = defaultdict[str, list[int]](list)
        for entry in reading.naming([f"book/{dataset}"]):
            if entry.kind == "open":
                break
            for name in entry.body["accounts"] if entry.kind == "refuse" else ():
                refused[name].append(entry.number)
        return {
            name: _points(reading, gate, refused[name][:most], most)
            for name, gate in newest_gates(reading, dataset).items()
            if name in names
        }


def _points(reading: Reading, gate: Gate, refused: list[int], most: int) -> list[Usage]:
    """Return the points of an account: every n-th, the newest, and its refusals."""
    numbers = newest_numbers(reading, gate.id, ENDLESS)[::-1]
    stride = max(1, -(-len(numbers) // (2 * most)))
    drawn = {*numbers[stride - 1 :: stride], *numbers[-1:], *refused}
    entries = [entry for _, entry in sorted(reading.entries(drawn).items())]
    points, used = [], gate.rule.zero()
    for entry, body in zip(entries, bodies(reading, entries), strict=True):
        # A refusal is drawn on the line: it changes no use.
        if gate.id in entry.postings:
            _, settled, held = entry.postings[gate.id]
            used = Tally(settled) + Tally(held)
        points.append(
            Usage(
                seq=entry.number,
                kind=entry.kind,
                used_fraction=gate.used_share(used) or 0.0,
                release_key=body.get("release_key"),
                at=entry.at,
            )
        )
    return points
