"""Releases and refused steps: list them, read one.

The value of a release is for its readers. Everything else shows its digest only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from heapq import merge
from itertools import islice
from typing import Any

from dpflow.accounting.costs.base import cost_from_description
from dpflow.exceptions import (
    BudgetExhausted,
    BudgetRefused,
    InvalidCost,
    ReleaseError,
    UnsupportedCost,
    require,
)
from dpflow.interrupts import suppress
from dpflow.ledger.account_ids import split
from dpflow.ledger.canonical import canonical
from dpflow.ledger.decisions.refusals import read_refusal
from dpflow.ledger.decisions.suggestions import in_windows
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.tables.rows import Entry, Release, Run, read_row
from dpflow.ledger.views.reading import (
    ENDLESS,
    Reading,
    Source,
    describe_entry,
    merge_newest,
    open_reading,
    pages,
)
from dpflow.policy.population import PREFIX
from dpflow.rounding import short_up


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalView:
    """One refused step: the gate, and what the journal keeps of it in `body`.

    Attributes:
        account: The first account that did not admit it.
        number: The entry's number in the journal.
    """

    account: str
    body: Mapping[str, Any]
    at: str
    number: int

    @property
    def dataset(self) -> str:
        """The dataset or population of the account."""
        return split(self.account)[0]

    @property
    def term(self) -> int:
        """The term of the account."""
        return split(self.account)[1]

    @property
    def is_exhausted(self) -> bool:
        """Whether a budget ended, and no step was mistyped."""
        return bool(self.body["refusal"] == BudgetExhausted.__name__)


#: What the id of a release may begin with.
_ID = re.compile(r"[0-9a-f]*")


_FACTS = (
    *("cost", "flow", "who", "noise", "reported"),
    *("measures", "as_drawn", "as_int", "versions", "partitions"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRelease:
    """A release as the ledger keeps it, without its value.

    Attributes:
        id: The start of its keyed digest; enough to name it.
        key: Its release key for people; empty for a replay within one flow run.
        state: "settled"; "claimed" while its step runs, or if its process died;
            "unreplayable" if its value could not be stored; "withdrawn".
        digest: HMAC of the encoded value.
        size: Characters of the encoded value.
        facts: Facts of its charge: cost, flow, who, noise, and reported outcome; its
            measure, whether its numbers are the drawn ones and were rounded to ints
            then, data versions and partitions.
        known: Half width and confidence of the interval of each of its numbers; None
            where they are not those of the draw, or the draw has no interval.
    """

    id: str
    key: str
    dataset: str
    step: str
    state: str
    digest: str | None
    size: int | None
    at: str
    facts: Mapping[str, Any]
    known: tuple[float, float] | None
    row: Release = field(repr=False)

    @property
    def error(self) -> str:
        """Half of the interval of each number, for people; "-" where it has none."""
        if self.known is None:
            return "-"
        half, share = self.known
        at = "" if share == _CONFIDENCE else f" at {100 * share:.4g} %"
        return f"{short_up(Fraction(half), 3)}{at}"


#: Confidence of an interval that is shown without it.
_CONFIDENCE = 0.95


#: Number of releases that are read together.
_PAGE = 1000
#: Number of refusals that are read for what halts a flow.
_MOST_REFUSALS = 1000


def releases(
    source: Source, dataset: str | None = None, most: int | None = None
) -> list[KeptRelease]:
    """Return the releases of one dataset or of all, newest first, or the newest."""
    with open_reading(source) as reading:
        rows = islice(read_releases(reading, dataset, min(most or _PAGE, _PAGE)), most)
        views = [*describe_releases(reading, rows)]
    return sorted(views, key=lambda release: (release.at, release.id), reverse=True)


def read_releases(
    reading: Reading, dataset: str | None, size: int
) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of releases of one dataset or of all, newest first, each once."""
    names = (n for n in reading.names(dataset) if dataset or not n.startswith(PREFIX))
    own = (pages(reading, "read_releases", n, ENDLESS, size=size) for n in names)
    seen = set[str]()
    for columns in merge(*own, key=lambda columns: columns[1], reverse=True):
        if columns[2] not in seen:
            seen.add(columns[2])
            yield columns


def describe_releases(
    reading: Reading, rows: Iterable[tuple[Any, ...]]
) -> Iterator[KeptRelease]:
    """Yield releases with what the entries of their charges say."""
    remaining = iter(rows)
    while page := [*islice(remaining, _PAGE)]:
        keys = [columns[2] for columns in page if columns[7] == "settled"]
        sizes = dict(reading.ask("read_release_sizes", keys=keys)) if keys else {}
        for columns in page:
            ended, flow, request = columns[9:]
            body = {"flow": flow, **json.loads(request), **json.loads(ended or "{}")}
            row = Release(*columns[2:9])
            is_lost = row.state == "settled" and row.digest is None
            yield KeptRelease(
                id=row.key[:12],
                key=row.key_text,
                dataset=",".join(body["datasets"]),
                step=row.step,
                state="unreplayable" if is_lost else row.state,
                digest=row.digest,
                size=sizes.get(row.key),
                at=columns[1],
                facts={name: body.get(name) for name in _FACTS},
                known=body.get("known") and tuple(body["known"]),
                row=row,
            )


def has_release(source: Source, key: str) -> bool:
    """Return whether a keyed digest of a release key has a release or a claim."""
    with open_reading(source) as reading:
        rows = reading.ask("read_release_state", key=key)
    return any(state != "free" for (state,) in rows)


def count_releases(source: Source, dataset: str | None) -> int:
    """Return the number of releases of one dataset or of all."""
    name = "count_releases" if dataset is None else "count_releases_of"
    where = {} if dataset is None else {"dataset": dataset}
    with open_reading(source) as reading:
        ((number,),) = reading.ask(name, **where)
    return int(number)


def release_value(source: Source, name: str) -> tuple[KeptRelease, str]:
    """Return a release and its encoded value.

    Args:
        source: The ledger.
        name: Its release key, or its id or the start of that.

    Raises:
        ReleaseError: If there is not exactly one, or no value to read, or the
            value is not the one that was settled.
    """
    with open_reading(source) as reading:
        release = find_release(reading, name)
        value = release_values(reading, [release]).get(release.id)
    if value is None:
        msg = f"release {name!r} is {release.state}: there is no value to read"
        raise ReleaseError(msg)
    return release, value


def release_values(source: Source, views: Sequence[KeptRelease]) -> dict[str, str]:
    """Return the encoded values of the releases that have one, by id.

    Raises:
        ReleaseError: If a value is not the one that was settled.
    """
    by_key, values = {view.row.key: view for view in views}, dict[str, str]()
    with open_reading(source) as reading:
        rows = reading.ask("read_release_values", keys=[*by_key]) if by_key else []
        for key, value in rows:
            release = by_key[key]
            name = release.key or release.id
            charge, digest = release.row.charge, release.digest
            reading.digests.check_value(value, charge, digest, name)
            values[release.id] = value
    return values


def find_release(source: Source, name: str) -> KeptRelease:
    """Return the one release that a name means.

    Args:
        source: The ledger.
        name: Its release key, or its id or the start of that.

    Raises:
        ReleaseError: If there is not exactly one.
    """
    # A key is a digest in hexadecimal; g follows its last digit.
    first, last = (name, f"{name}g") if _ID.fullmatch(name) else ("", "")
    with open_reading(source) as reading:
        places = reading.ask("find_releases", name=name, first=first, last=last)
        rows = list[tuple[Any, ...]]()
        for dataset, number in sorted(places, reverse=True):
            where = {"dataset": dataset, "after": number + 1, "limit": 1}
            rows += reading.ask("read_releases", **where)
        candidates = [*describe_releases(reading, rows)]
    candidates.sort(key=lambda release: release.at, reverse=True)
    matches = [release for release in candidates if release.key == name] or candidates
    msg = f"there is no release {name!r}; `dpflow releases list` shows them all"
    if matches:
        ids = ", ".join(release.id for release in matches[:5])
        msg = f"{name!r} names {len(matches)} releases; say which by its id: {ids}"
    require(len(matches) == 1, msg, ReleaseError)
    return matches[0]


# Withdrawals


def withdraw_release(
    ledger: Ledger, name: str, *, reason: str, anyway: bool = False
) -> tuple[KeptRelease, bool]:
    """Delete the value of a release; its digest and its charge stay.

    Args:
        ledger: The ledger.
        name: Its release key, or its id or the start of that.
        reason: Why, for the journal.
        anyway: Delete it even if the budget admits no new draw at its cost.

    Returns:
        The release, and True if the budget admits a new draw.

    Raises:
        ReleaseError: If there is not exactly one, or no value to delete; or if no new
            draw fits, without `anyway`.
    """
    with open_reading(ledger) as reading:
        release = find_release(reading, name)
        fits = admits_again(reading, release.row.charge)
    require(
        release.state != "settled" or fits or anyway,
        f"release {name!r} was not withdrawn: the budget of {release.dataset} "
        f"admits no new draw of step {release.step!r} at its cost, so that there "
        "would be no number at all. Write --anyway to delete the value even so.",
        ReleaseError,
    )
    if not ledger.withdraw(release.row.key, digest=release.digest, reason=reason):
        msg = (
            f"release {name!r} is {release.state}, so there is no value to delete. "
            "`dpflow releases list` shows the state of each release."
        )
        raise ReleaseError(msg)
    return replace(release, state="withdrawn", size=None), fits


def admits_again(reading: Reading, charge: str) -> bool:
    """Return True if the newest terms admit another charge like an earlier one."""
    request = reading.requests([charge])[charge]
    units, sizes = request.get("units", {}), {}
    for account in request["accounts"]:
        dataset, _, *kind = split(account)
        sizes[dataset, *kind] = int(units.get(account, 1))
    pairs = []
    with suppress(InvalidCost, UnsupportedCost):
        cost = cost_from_description(request["cost"])
        for dataset in {dataset for dataset, *_ in sizes}:
            for gate in reading.newest_gates(dataset).values():
                size = sizes.get((dataset, gate.kind, gate.name, gate.partition))
                if size is not None:
                    pairs.append((gate, gate._replace(size=size).price(cost)))
        return all(gate.admits(amount) for gate, amount in in_windows(pairs))
    return False


# Refused steps


def count_refusals(source: Source, flow_run: str) -> int:
    """Return how many refusals a flow run has met."""
    with open_reading(source) as reading:
        rows = reading.ask("read_run", id=flow_run)
    return sum(read_row(Run, columns).refusals for columns in rows)


def refusal_of_run(
    source: Source, flow_run: str, *, after: int = 0
) -> BudgetRefused | None:
    """Return the refusal that a flow run met, if it met one.

    An exhausted budget is returned before a refused step, for it ends the flow.

    Args:
        source: The ledger to read.
        flow_run: Id of the run.
        after: How many refusals to pass over, oldest first: those of an earlier
            execution of the run, which a new term or another policy may have answered.
    """
    with open_reading(source) as reading:
        if count_refusals(reading, flow_run) <= after:
            return None
        datasets = {name for _, name, *_ in reading.ask("read_run", id=flow_run)}
        refused = [e for name in datasets for e in reading.refusals(name)]
    # The runs of most refusals are others.
    entries = [entry for entry in refused if canonical(flow_run) in entry.body]
    entries.sort(key=lambda entry: (entry.at, entry.dataset, entry.number))
    met = describe_refusals(entries)
    views = [view for view in met if flow_run in view.body.get("runs", ())][after:]
    if not views:
        return None
    refusal = min(views, key=lambda refusal: not refusal.is_exhausted)
    step = {name: refusal.body.get(name) for name in ("step", "flow", "cost")}
    return read_refusal(refusal.body, flow_run=flow_run, **step)


def refusals(
    source: Source, *, dataset: str | None = None, limit: int = _MOST_REFUSALS
) -> list[RefusalView]:
    """Return the refused steps, newest first.

    Args:
        source: The ledger to read.
        dataset: Only those that this dataset's gates refused.
        limit: Largest number of entries that are read of each dataset.
    """
    with open_reading(source) as reading:
        key = "refusals", dataset, limit
        if key not in reading.remembered:
            own = (reading.refusals(name, limit) for name in reading.names(dataset))
            views = list(islice(describe_refusals(merge_newest(own)), limit))
            reading.remembered[key] = views
        refused: list[RefusalView] = reading.remembered[key]
        return refused


def describe_refusals(entries: Iterable[Entry]) -> Iterator[RefusalView]:
    """Yield refused steps.

    Of a step over several datasets, one entry has the words; others say what halts.
    """
    for entry in entries:
        body = describe_entry(entry)
        if "refusal" in body:
            yield RefusalView(
                account=str(body["account"]),
                body=body,
                at=entry.at,
                number=entry.number,
            )


def halts(source: Source, dataset: str) -> dict[str | None, RefusalView]:
    """Return the exhausted budget that halts each flow: no grant came after it.

    The refusal of an earlier term, or of before a change of access, halts no flow.

    Args:
        source: The ledger to read.
        dataset: The dataset; its population's gates refuse, too.
    """
    with open_reading(source) as reading:
        newest: dict[str | None, RefusalView] = {}
        for refusal in refusals(reading):
            if refusal.is_exhausted and dataset in refusal.body["datasets"]:
                newest.setdefault(refusal.body.get("flow"), refusal)
        if not newest:
            return {}
        rows = reading.ask("read_newest_grants", dataset=dataset)
        grants = {flow: (number, at) for flow, number, at in rows}
        halts = dict[str | None, RefusalView]()
        for flow, refusal in newest.items():
            name, (number, at) = refusal.dataset, grants.get(flow, (0, ""))
            # Journals of several datasets have only their times in common.
            is_same = name == dataset
            is_after = refusal.number > number if is_same else refusal.at >= at
            term = reading.newest(name)
            accesses = (e.number for e in reading.decisions(name) if e.kind == "access")
            is_after = is_after and refusal.number > max(accesses, default=0)
            if term and refusal.term in (0, term.number) and is_after:
                halts[flow] = refusal
    return halts
