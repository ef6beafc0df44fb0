"""Releases and refused steps: list them, read one.

The value of a release is for its readers. Everything else shows its digest only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import chain, islice
from typing import Any

from dpflow.exceptions import BudgetExhausted, BudgetRefused, ReleaseError
from dpflow.ledger import rows
from dpflow.ledger.entry import Entry, canonical
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.records import RefusalView
from dpflow.ledger.state import State, charge_keys
from dpflow.ledger.storage.base import readable
from dpflow.ledger.storage.tables import Reading
from dpflow.ledger.views.accounts import governing
from dpflow.ledger.views.runs import joined, root_keys
from dpflow.rounding import short_up

_PREFIX = "release/"
#: Number of releases whose charges and values are read together.
_PAGE = 100
#: What the id of a release may begin with.
_ID = re.compile(r"[0-9a-f]*")
#: Confidence of an interval that no text names.
_CONFIDENCE = 0.95
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
    row: rows.Release = field(repr=False)

    @property
    def error(self) -> str:
        """Half of the interval of each number, for people; "-" where it has none."""
        if self.known is None:
            return "-"
        half, share = self.known
        at = "" if share == _CONFIDENCE else f" at {100 * share:.4g} %"
        return f"{short_up(Fraction(half), 3)}{at}"


def releases(
    ledger: Ledger, dataset: str | None = None, most: int | None = None
) -> list[KeptRelease]:
    """Return the releases of one dataset or of all, newest first, or the newest."""
    with ledger.storage.read() as reading:
        newest = islice(read_releases(reading, dataset), most)
        return sorted(newest, key=lambda each: (each.at, each.id), reverse=True)


def read_releases(
    reading: Reading, dataset: str | None = None, name: str | None = None
) -> Iterator[KeptRelease]:
    """Yield releases, those that were claimed last first.

    Args:
        reading: Of the ledger.
        dataset: Only of this dataset.
        name: Only with this release key, or an id that begins so.
    """
    keys: Iterable[str] = ()
    if name is None:
        books = reading.books() if dataset is None else [dataset]
        entries = reading.naming(k for book in books for k in root_keys(reading, book))
    else:
        text = canonical({"release_key": name})[1:-1]
        numbers = (number for (number,) in reading.ask("with_text", text=text))
        entries = iter(reading.entries(numbers).values())
        if _ID.fullmatch(name):
            keys = reading.names(_PREFIX + name)
    named = (_PREFIX + str(e.body["key"]) for e in entries if e.body.get("key"))
    for each in _read(reading, chain(keys, named)):
        if name is None or each.key == name or each.row.key.startswith(name):
            yield each


def has_release(ledger: Ledger, key: str) -> bool:
    """Return whether a keyed digest of a release key has a release or a claim."""
    with ledger.storage.read() as reading, readable(ledger.place):
        return reading.load(lambda _: [f"release/{key}"]).release(key) is not None


def count_releases(ledger: Ledger, dataset: str | None) -> int:
    """Return the number of releases of one dataset or of all."""
    account = "" if dataset is None else canonical(f"account/{dataset}#")[:-1]
    book = canonical(f"book/{dataset}")
    with ledger.storage.read() as reading:
        ((number,),) = reading.ask("count_releases", account=account, book=book)
    return int(number)


def release_value(ledger: Ledger, name: str) -> tuple[KeptRelease, str]:
    """Return a release and its encoded value.

    Args:
        ledger: The ledger.
        name: Its release key, or its id or the start of that.

    Raises:
        ReleaseError: If there is not exactly one, or no value to read, or the
            value is not the one that was settled.
    """
    with ledger.storage.read() as reading:
        found = named_release(reading, name)
    value = release_values(ledger, [found]).get(found.id)
    if value is None:
        msg = f"release {name!r} is {found.state}: there is no value to read"
        raise ReleaseError(msg)
    return found, value


def release_values(ledger: Ledger, kept: Sequence[KeptRelease]) -> dict[str, str]:
    """Return the encoded values of the releases that have one, by id.

    Raises:
        ReleaseError: If a value is not the one that was settled.
    """
    with ledger.storage.read() as reading:
        state = reading.load(lambda _: [_PREFIX + each.row.key for each in kept])
    values = {each.id: state.values.get(each.row.key) for each in kept}
    for each in kept:
        if (value := values[each.id]) is not None:
            name = each.key or each.id
            ledger.digests.check_value(value, each.row.charge, each.digest, name)
    return {name: value for name, value in values.items() if value is not None}


def named_release(reading: Reading, name: str) -> KeptRelease:
    """Return the one release that a name means.

    Args:
        reading: Of the ledger.
        name: Its release key, or its id or the start of that.

    Raises:
        ReleaseError: If there is not exactly one.
    """
    kept = [*read_releases(reading, name=name)]
    found = [each for each in kept if each.key == name] or kept
    if len(found) == 1:
        return found[0]
    msg = f"there is no release {name!r}; `dpflow releases list` shows them all"
    if found:
        ids = ", ".join(each.id for each in found[:5])
        msg = f"{name!r} names {len(found)} releases; say which by its id: {ids}"
    raise ReleaseError(msg)


def _read(reading: Reading, keys: Iterable[str]) -> Iterator[KeptRelease]:
    """Yield releases, each once, with what the entries of their charges say."""
    first = dict[str, int]()
    left = (k for n, k in enumerate(keys) if first.setdefault(k, n) == n)
    while page := [*islice(left, _PAGE)]:

        def needs(state: State, page: Sequence[str] = tuple(page)) -> Iterator[str]:
            yield from page
            for row in filter(None, map(state.rows.get, page)):
                yield from charge_keys(state, row["charge"])

        state = reading.load(needs)
        names = [key.removeprefix(_PREFIX) for key in page]
        sizes = reading.sizes(names)
        for row in filter(None, map(state.release, names)):
            yield _kept(state, row, sizes)


def _kept(
    state: State, row: rows.Release, sizes: Mapping[str, int | None]
) -> KeptRelease:
    made = state.made[row.charge]
    body = joined(state.ends.get(row.charge, made), made)
    now = row.state
    if now == "settled" and row.key not in sizes:
        now = "unreplayable" if row.digest is None else "withdrawn"
    return KeptRelease(
        id=row.key[:12],
        key=body.get("release_key") or "",
        dataset=",".join(body["datasets"]),
        step=body["step"],
        state=now,
        digest=row.digest,
        size=sizes.get(row.key),
        at=made.at,
        facts={name: body.get(name) for name in _FACTS},
        known=body.get("known") and tuple(body["known"]),
        row=row,
    )


# Refused steps


_NAMED = ("gate", "theorem", "asked", "left", "fits", "step", "flow", "cost")


def count_refusals(ledger: Ledger, flow_run: str) -> int:
    """Return how many refusals a flow run has met."""
    with ledger.storage.read() as reading:
        return reading.load(lambda _: [f"run/{flow_run}"]).run(flow_run).refusals


def refusal_of_run(
    ledger: Ledger, flow_run: str, *, after: int = 0
) -> BudgetRefused | None:
    """Return the refusal that a flow run met, if it met one.

    An exhausted budget is returned before a refused step, for it ends the flow.

    Args:
        ledger: The ledger to read.
        flow_run: Id of the run.
        after: How many refusals to pass over, oldest first: those of an earlier
            execution of the run, which a new term or another policy may have answered.
    """
    with ledger.storage.read() as reading:
        named = reading.naming_after([f"run/{flow_run}"])
        refused = [_view(entry) for entry in named if entry.kind == "refuse"][after:]
    if not refused:
        return None
    found = min(refused, key=lambda each: not each.is_exhausted)
    kind = BudgetExhausted if found.is_exhausted else BudgetRefused
    details = {"dataset": found.dataset, **{n: found.body.get(n) for n in _NAMED}}
    return kind(found.body["message"], flow_run=flow_run, **details)


def refusals(
    ledger: Ledger, *, dataset: str | None = None, limit: int = 1000
) -> list[RefusalView]:
    """Return the refused steps, newest first.

    Args:
        ledger: The ledger to read.
        dataset: Only those that this dataset's gates refused.
        limit: Largest number of entries that are read.
    """
    with ledger.storage.read() as reading:
        found = [_view(entry) for entry in islice(reading.rare("refuse"), limit)]
    return [each for each in found if dataset in (None, each.dataset)]


def _view(entry: Entry) -> RefusalView:
    account, body = str(entry.body["account"]), entry.body
    return RefusalView(account=account, body=body, at=entry.at, number=entry.number)


def halts(ledger: Ledger, dataset: str) -> dict[str | None, RefusalView]:
    """Return the exhausted budget that halts each flow: no grant came after it.

    The refusal of an earlier term halts no flow.

    Args:
        ledger: The ledger to read.
        dataset: The dataset; its population's gates refuse, too.
    """
    newest: dict[str | None, RefusalView] = {}
    for refusal in refusals(ledger):
        if refusal.is_exhausted and dataset in refusal.body["datasets"]:
            newest.setdefault(refusal.body.get("flow"), refusal)
    with ledger.storage.read() as reading:
        books = {refusal.dataset for refusal in newest.values()}
        terms = {term.whole for book in books if (term := governing(reading, book))}
        newest = {f: r for f, r in newest.items() if f"{r.dataset}#{r.term}" in terms}
        for entry in reading.naming(root_keys(reading, dataset)):
            if all(entry.number < refusal.number for refusal in newest.values()):
                break
            refused = newest.get(flow := entry.body.get("flow"))
            granted = entry.kind == "reserve" and dataset in entry.body["datasets"]
            if refused and granted and entry.number > refused.number:
                del newest[flow]
    return newest
