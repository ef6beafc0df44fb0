"""Kept outputs: list them, read one, forget one.

The value of a release is for its readers. Everything else shows its digest only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpflow.exceptions import ReleaseError
from dpflow.ledger.database import Row
from dpflow.ledger.kernel import Ledger
from dpflow.ledger.records import digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A release as the ledger keeps it, without its value.

    Attributes:
        id: The start of its keyed digest; enough to name it.
        key: Its release key for people; empty for a replay within one flow run.
        state: "settled"; "claimed" while it is being made, or if its maker died;
            "unreplayable" if its value could not be stored; "forgotten".
        digest: sha256 of the encoded value.
        size: Characters of the encoded value.
        flow: The flow that it was made for, if there was one.
        who: Who made it, as far as the ledger was told.
        noise: Who drew its noise, as the journal says; None until it is settled.
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


def releases(ledger: Ledger, dataset: str | None = None) -> list[Release]:
    """Return the releases of one dataset or of all, newest first."""
    with ledger.database.read() as session:
        rows = session.rows("list_releases")
    found = [_release(row) for row in rows]
    return [
        item for item in found if dataset is None or dataset in item.dataset.split(",")
    ]


def release_value(ledger: Ledger, name: str) -> tuple[Release, str]:
    """Return a release and its encoded value.

    Args:
        ledger: Where it is kept.
        name: Its release key, or its id or the start of that.

    Raises:
        ReleaseError: If there is none or more than one, or no value to read, or the
            value is not the one that was settled.
    """
    row = _found(ledger, name)
    found = _release(row)
    if row["value"] is None:
        msg = f"release {name!r} is {found.state}: there is no value to read"
        raise ReleaseError(msg)
    check_value(row["value"], row["digest"], name)
    return found, row["value"]


def forget_release(ledger: Ledger, name: str) -> Release:
    """Delete the value of a release; its digest and its charge stay.

    Raises:
        ReleaseError: If there is none or more than one, or no value to delete.
    """
    row = _found(ledger, name)
    with ledger.writing(()) as session:
        changed = session.change(
            "forget_release", release_key=row["release_key"], digest=row["digest"]
        )
    if changed != 1:
        msg = f"release {name!r} is {_release(row).state}: there is no value to delete"
        raise ReleaseError(msg)
    return _release(_found(ledger, row["release_key"]))


def check_value(value: str, expected: str | None, name: str) -> None:
    """Refuse a value that is not the one that was settled.

    Raises:
        ReleaseError: If its digest is another.
    """
    if digest(value) != expected:
        msg = (
            f"the value of release {name!r} is not the one that was settled: its "
            "digest differs. Someone edited the ledger, or it is damaged; run "
            "`dpflow ledger verify`."
        )
        raise ReleaseError(msg)


def _found(ledger: Ledger, name: str) -> Row:
    with ledger.database.read() as session:
        rows = session.rows("list_releases")
        named = [row for row in rows if row["key_text"] == name] or [
            row for row in rows if row["release_key"].startswith(name)
        ]
        if len(named) == 1:
            key = named[0]["release_key"]
            return {**named[0], **session.rows("read_release", release_key=key)[0]}
    if not named:
        msg = f"there is no release {name!r}; `dpflow releases list` shows them all"
        raise ReleaseError(msg)
    ids = ", ".join(_release(row).id for row in named[:5])
    msg = f"{name!r} names {len(named)} releases; say which by its id: {ids}"
    raise ReleaseError(msg)


def _release(row: Row) -> Release:
    charge, settled = (json.loads(row[name] or "{}") for name in ("charge", "settled"))
    return Release(
        id=row["release_key"][:12],
        key=row["key_text"],
        dataset=row["dataset"],
        step=row["step"],
        cost=json.loads(row["cost"]),
        state=_state(row),
        digest=row["digest"],
        size=row["size"],
        at=row["at"],
        flow=charge.get("flow"),
        who=charge.get("who"),
        noise=settled.get("noise"),
    )


def _state(row: Row) -> str:
    if row["state"] == "claimed" or row["size"] is not None:
        return str(row["state"])
    return "unreplayable" if row["digest"] is None else "forgotten"
