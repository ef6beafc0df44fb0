"""Who spent a budget, how it was used up, and which charges were unusual."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from operator import add
from typing import NamedTuple

from dpflow.accounting.costs.text import python_form
from dpflow.accounting.rules.rule import Filter
from dpflow.accounting.rules.tally import Tally
from dpflow.ledger.account_ids import Amounts, split
from dpflow.ledger.decisions.gates import Gate
from dpflow.ledger.tables.loaded import sum_amounts
from dpflow.ledger.tables.rows import Entry
from dpflow.ledger.views.reading import (
    ENDLESS,
    Body,
    Reading,
    Source,
    describe_entry,
    open_reading,
    read_postings,
)
from dpflow.periods import WEEK


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """How much of a dataset's budget was used after one entry of its journal."""

    seq: int
    kind: str
    used_fraction: float
    release_key: str | None
    at: str


#: What the journal says of a step that called nothing of dpflow to draw its noise.
OWN_NOISE = ("own", "self-declared")


#: Facts by which charges can be grouped.
GROUPS = ("flow", "step", "week", "release", "who", "cost", "noise")


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


#: Number of entries that are read for the accounts that were charged lately.
LATELY = 1000


class Spent(NamedTuple):
    """Equal charges of a term, or an amount that a person charged.

    Attributes:
        labels: Labels by the names of `GROUPS`.
        at: When the newest was posted or, while it is held, reserved; a label.
        amounts: By account, what each posted or still holds.
        way: The unusual way in which they ended; "" if it was usual.
        charges: How many there are.
    """

    labels: Mapping[str, str]
    at: str
    amounts: Mapping[str, Amounts]
    way: str
    step: str
    flow: str | None
    charges: int = 1


def spending(
    source: Source, dataset: str, by: tuple[str, ...], *, term: int
) -> tuple[list[Spending], list[Unusual]]:
    """Return what used the budgets of one term of a dataset, and its unusual steps.

    Args:
        source: The ledger to read.
        dataset: A dataset or population.
        by: Names of `GROUPS`.
        term: Number of the term; nothing was charged in term 0.

    Returns:
        The groups, the largest first; and the steps that drew their own noise, failed
        or were forfeited, the newest first.
    """
    groups = defaultdict[tuple[str, tuple[str, ...]], list[Spent]](list)
    ways = defaultdict[tuple[str, str, str | None], list[Spent]](list)
    with open_reading(source) as reading:
        gates = reading.term_gates(f"{dataset}#{term}") if term else {}
        rules = {
            gate.id: gate.rule
            for gate in gates.values()
            if gate.kind in _HAVE_BUDGETS and isinstance(gate.rule, Filter)
        }
        for spent in read_spent(reading, dataset, by, term) if term else ():
            if spent.way:
                ways[spent.way, spent.step, spent.flow].append(spent)
            group = tuple(spent.labels[name] for name in by)
            for account in spent.amounts.keys() & rules.keys():
                groups[account, group].append(spent)
    rows = list[Spending]()
    for (account, group), own in groups.items():
        rule = rules[account]
        amounts = (Tally(s.amounts[account]).times(s.charges) for s in own)
        total = sum(amounts, rule.zero())
        row = Spending(
            account=account,
            group=group,
            charges=sum(spent.charges for spent in own),
            amount=rule.label(total),
            used_fraction=rule.used_fraction(total),
            last=max(spent.at for spent in own),
        )
        rows.append(row)
    unusual = [
        Unusual(*way, sum(s.charges for s in own), max(s.at for s in own))
        for way, own in ways.items()
    ]
    rows.sort(key=lambda row: (-row.used_fraction, row.group, row.account))
    return rows, sorted(unusual, key=order_unusual, reverse=True)


def order_unusual(steps: Unusual) -> tuple[str, ...]:
    """Return what the unusual steps of a term are ordered by."""
    return steps.last, steps.step, steps.flow or "", steps.what


def read_spent(
    reading: Reading, dataset: str, by: Collection[str], term: int
) -> Iterator[Spent]:
    """Yield the charges of a term: ended ones, open ones, and those by hand."""
    openings = [*reading.find_openings(dataset), ENDLESS]
    after, before = openings[term - 1], openings[term]
    wanted = {name: int(name in by) for name in ("release", "who", "cost")}
    where = {"dataset": dataset, "after": after, "before": before}
    for columns in reading.ask("read_ends", **where, **wanted):
        labels, (flow, step, *_, noise) = name_labels(*columns[:7]), columns[:7]
        kind, postings, outcome, error, charges, at = columns[7:]
        way = find_way(kind, outcome, error, noise)
        yield Spent(labels, at, find_posted(kind, postings), way, step, flow, charges)
    for waiting in reading.open_charges:
        row, way = waiting.charge, "" if waiting.alive else _FORFEITED
        amounts = {name: held.amount for name, held in row.amounts.items()}
        if f"{dataset}#{term}" in amounts:
            labels = label_body(waiting.body, waiting.at, waiting.writer)
            yield Spent(labels, waiting.at, amounts, way, row.step, row.flow)
    yield from read_charged_by_hand(reading, dataset, term)


def read_charged_by_hand(reading: Reading, dataset: str, term: int) -> Iterator[Spent]:
    """Yield what people charged to a term, and what a repair did."""
    every = reading.decisions(dataset)
    entries = [entry for entry in every if entry.kind in ("adjust", "repair")]
    requests = reading.requests(entry.charge for entry in entries)
    for entry in entries:
        posted = find_posted(entry.kind, entry.postings)
        if any(split(name)[1] in (0, term) for name in posted):
            body = describe_entry(entry, requests.get(entry.charge or ""))
            labels = label_body(body, entry.at, entry.writer)
            yield Spent(labels, entry.at, posted, "", entry.step or "-", entry.flow)


def find_posted(kind: str, postings: str) -> Mapping[str, Amounts]:
    """Return what an entry settled; nothing of a void that gave all back."""
    posted = {name: done for name, (done, _) in read_postings(postings).items()}
    return {} if kind == "void" and not any(map(any, posted.values())) else posted


@lru_cache(maxsize=1024)
def name_week(day: str) -> str:
    """Return the week of a day."""
    return WEEK.name_around(datetime.fromisoformat(day))


def label_body(body: Body, at: str, writer: str) -> dict[str, str]:
    """Return the labels of a charge from its facts."""
    step, who = body.get("step") or body.get("reason"), body.get("who") or writer
    key, cost = body.get("release_key"), json.dumps(body.get("cost"))
    return name_labels(
        body.get("flow"), step, at[:10], key, who, cost, body.get("noise")
    )


def name_labels(*fields: str | None) -> dict[str, str]:
    """Return the labels of a charge by the names of `GROUPS`.

    Args:
        *fields: Its fields in the order of `GROUPS`, with a day in place of the week.
    """
    flow, step, day, release, who, cost, noise = fields
    week, cost = name_week(str(day)), cost and write_cost(cost)
    labels = flow, step, week, release, who, cost, noise
    return {name: label or "-" for name, label in zip(GROUPS, labels, strict=True)}


@lru_cache(maxsize=1024)
def write_cost(text: str) -> str | None:
    """Return a cost of a request as a constructor call; None without a cost."""
    description = json.loads(text)
    return description and python_form(description)


def find_way(kind: str, outcome: str, error: str | None, noise: str | None) -> str:
    """Return the unusual way in which a charge ended; "" if it was usual."""
    if kind == "forfeit":
        return _FORFEITED
    if kind == "settle" and outcome == "failed":
        return f"failed: {error or 'error'}"
    return "own noise" if kind == "settle" and noise in OWN_NOISE else ""


# Use after each entry


def usage(
    source: Source, dataset: str, names: Collection[str], *, most: int
) -> dict[str, list[Usage]]:
    """Return how gates of a dataset's newest term were used up, by account.

    Args:
        source: The ledger to read.
        dataset: A dataset or population.
        names: The accounts.
        most: About the number of points of each, spread evenly with the newest among
            them, and the largest number of refusals.

    Returns:
        The points of each account, oldest first.
    """
    with open_reading(source) as reading:
        newest = reading.newest_gates(dataset)
        gates = {name: gate for name, gate in newest.items() if name in names}
        if not gates:
            return {}
        opened = reading.find_openings(dataset)[-1]
        refused = list_refused(reading, dataset, opened)
        # Parts of windows belong to all terms.
        after = 0 if any(gate.window for gate in gates.values()) else opened
        rows = reading.ask("read_postings", dataset=dataset, after=after)
        drawn = {name: {*numbers[:most]} for name, numbers in refused.items()}
        points = [*draw_points(gates, rows, drawn, most)]
        numbers = sorted({number for _, number, _ in points})
        ends = reading.ask("read_entries_at", dataset=dataset, numbers=numbers)
        entries = {number: columns for number, *columns in ends}
    usages: dict[str, list[Usage]] = {name: [] for name in gates}
    for name, number, used in points:
        kind, at, key = entries[number]
        point = Usage(
            seq=number,
            kind=kind,
            used_fraction=gates[name].measure_use(Tally(used)) or 0.0,
            release_key=key or None,
            at=at,
        )
        usages[name].append(point)
    return usages


def find_newest_entries(source: Source, dataset: str) -> dict[str, int]:
    """Return the newest entry of each account that was charged lately."""
    newest = dict[str, int]()
    with open_reading(source) as reading:
        where = {"dataset": dataset, "after": ENDLESS, "limit": LATELY}
        for columns in reading.ask("read_newest_entries", **where):
            entry = Entry(*columns)
            for name in read_postings(entry.postings):
                newest.setdefault(name, entry.number)
    return newest


def list_refused(reading: Reading, dataset: str, after: int) -> dict[str, list[int]]:
    """Return the numbers of later refusals by each account, newest first."""
    refused = defaultdict[str, list[int]](list)
    for entry in reading.refusals(dataset):
        body = json.loads(entry.body)
        for name in body.get("accounts", body.get("halts", ())):
            if entry.number > after:
                refused[name].append(entry.number)
    return refused


def draw_points(
    gates: Mapping[str, Gate],
    rows: Sequence[tuple[int, str]],
    refused: Mapping[str, Collection[int]],
    most: int,
) -> Iterator[tuple[str, int, Amounts]]:
    """Yield points of accounts, the newest among them, and at their refusals.

    A point is an account, the number of an entry, and what was used after it.

    Args:
        gates: The accounts.
        rows: Numbers and postings of all entries, oldest first.
        refused: Numbers of refusals by account.
        most: About the number of points of each.
    """
    used = {name: gate.rule.zero().amounts for name, gate in gates.items()}
    marked = {number for numbers in refused.values() for number in numbers}
    stride, start = max(1, -(-len(rows) // most)), 0
    for end, (number, _) in enumerate(rows, 1):
        if end % stride and end < len(rows) and number not in marked:
            continue
        # Most entries post the same amounts.
        newest = {text: position for position, text in rows[start:end]}
        last = dict[str, int]()
        for text, times in Counter(text for _, text in rows[start:end]).items():
            for name, change in read_postings(text).items():
                if name in used:
                    more = (times * amount for amount in sum_amounts(*change))
                    used[name] = tuple(map(add, used[name], more))
                    last[name] = max(last.get(name, 0), newest[text])
        # A refusal is drawn on the line: it changes no use.
        last |= {name: number for name in used if number in refused.get(name, ())}
        for name, position in last.items():
            yield name, position, used[name]
        start = end
