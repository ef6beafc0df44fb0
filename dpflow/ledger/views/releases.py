"""Kept outputs: list them, read one.

The value of a release is for its readers. Everything else shows its digest only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dpflow.accuracy.estimate import Estimate
from dpflow.exceptions import ReleaseError
from dpflow.ledger import rows
from dpflow.ledger.codec import decode
from dpflow.ledger.entry import canonical
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.model import Keys, Reach
from dpflow.ledger.storage.transaction import Reading

#: Of so many releases at once, the charges and values are read.
_PAGE = 100
#: The mechanism whose releases may be estimates.
_REFINED = "Refined"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRelease:
    """A release as the ledger keeps it, without its value.

    Attributes:
        id: The start of its keyed digest; enough to name it.
        key: Its release key for people; empty for a replay within one flow run.
        state: "settled"; "claimed" while it is being made, or if its maker died;
            "unreplayable" if its value could not be stored; "withdrawn".
        digest: HMAC of the encoded value.
        size: Characters of the encoded value.
        flow: The flow that it was made for, if there was one.
        who: Who made it, as far as the ledger was told.
        noise: Who drew its noise, as the journal says; None until it is settled.
        reported: The outcome that it was charged for, if its body reported one.
        known: Half width and confidence of the interval that was released with it;
            None for a value without one.
    """

    id: str
    key: str
    dataset: str
    step: str
    cost: Mapping[str, Any]
    state: str
    digest: str | None
    size: int | None
    at: str
    flow: str | None
    who: str | None
    noise: str | None
    reported: int | str | None
    known: tuple[float, float] | None
    row: rows.Release = field(repr=False)


def releases(ledger: Ledger, dataset: str | None = None) -> list[KeptRelease]:
    """Return the releases of one dataset or of all, newest first."""
    with ledger.storage.read() as reading:
        return read_releases(reading, dataset)


def values_kept(
    ledger: Ledger, dataset: str | None = None
) -> list[tuple[KeptRelease, str]]:
    """Return the releases that may be replayed, with their values, newest first."""
    with ledger.storage.read() as reading:
        found = read_releases(reading, dataset)
        values = ((each, _value(reading, each.row)) for each in found)
        return [(each, value) for each, value in values if value is not None]


def read_releases(
    reading: Reading, dataset: str | None = None, name: str | None = None
) -> list[KeptRelease]:
    """Return releases, newest first; of the others no charge is read.

    Args:
        reading: Of the ledger.
        dataset: Only of this dataset.
        name: Only with this release key, or an id that begins so.
    """
    kept = reading.releases()
    if dataset is not None or name is not None:
        text = "" if name is None else canonical({"release_key": name})[1:-1]
        charges = reading.charges_of(dataset, text)
        kept = [
            pair
            for pair in kept
            if pair[0].charge in charges
            or (name is not None and pair[0].key.startswith(name))
        ]
    found = sorted(_told(reading, kept), key=lambda each: each.id)
    return sorted(found, key=lambda each: each.at, reverse=True)


def release_value(ledger: Ledger, name: str) -> tuple[KeptRelease, str]:
    """Return a release and its encoded value.

    Args:
        ledger: Where it is kept.
        name: Its release key, or its id or the start of that.

    Raises:
        ReleaseError: If there is none or more than one, or no value to read, or the
            value is not the one that was settled.
    """
    with ledger.storage.read() as reading:
        found = named_release(reading, name)
        value = _value(reading, found.row)
    if value is None:
        msg = f"release {name!r} is {found.state}: there is no value to read"
        raise ReleaseError(msg)
    ledger.digests.check_value(value, found.row.charge, found.digest, name)
    return found, value


def named_release(reading: Reading, name: str) -> KeptRelease:
    """Return the one release that a name means.

    Args:
        reading: Of the ledger.
        name: Its release key, or its id or the start of that.

    Raises:
        ReleaseError: If there is none or more than one.
    """
    kept = read_releases(reading, name=name)
    found = [each for each in kept if each.key == name] or [
        each for each in kept if each.row.key.startswith(name)
    ]
    if len(found) == 1:
        return found[0]
    msg = f"there is no release {name!r}; `dpflow releases list` shows them all"
    if found:
        ids = ", ".join(each.id for each in found[:5])
        msg = f"{name!r} names {len(found)} releases; say which by its id: {ids}"
    raise ReleaseError(msg)


def _value(reading: Reading, row: rows.Release) -> str | None:
    return reading.load(Keys(releases=(row.key,))).values.get(row.key)


def _told(
    reading: Reading, kept: list[tuple[rows.Release, int | None]]
) -> Iterator[KeptRelease]:
    """Yield releases with what the entries of their charges say."""
    for start in range(0, len(kept), _PAGE):
        page = kept[start : start + _PAGE]
        names = tuple({row.charge for row, _ in page})
        state = reading.load(Keys(charges=names, reach=Reach.ENTRIES))
        for row, size in page:
            charge = state.charge(row.charge)
            if charge is None:
                continue
            made, ended = state.made(charge, row.book), state.ended(charge, row.book)
            body, end = made.body, {} if ended is None else ended.body
            refined = body["cost"].get("mechanism") == _REFINED
            yield KeptRelease(
                id=row.key[:12],
                key=body.get("release_key") or "",
                dataset=",".join(body["datasets"]),
                step=body["step"],
                cost=body["cost"],
                state=_state(row, size),
                digest=row.digest,
                size=size,
                at=made.at,
                flow=body.get("flow"),
                who=body.get("who"),
                noise=end.get("noise"),
                reported=end.get("reported"),
                known=_known(_value(reading, row) if refined else None),
                row=row,
            )


def _known(text: str | None) -> tuple[float, float] | None:
    """Return half the width of an estimate's interval, and its confidence."""
    found = decode(text) if text else None
    if not isinstance(found, Estimate):
        return None
    low, high = found.interval
    return max(high - found, found - low), found.confidence


def _state(row: rows.Release, size: int | None) -> str:
    if row.state == "claimed" or size is not None:
        return row.state
    return "unreplayable" if row.digest is None else "withdrawn"
