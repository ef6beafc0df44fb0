"""A stored row beside the one that the journal comes to."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from dpflow.ledger.audit.findings import Finding
from dpflow.ledger.entry import canonical
from dpflow.ledger.rows import Key, Release, Row
from dpflow.ledger.storage.row_texts import row_text

#: Says whether a value is the one that a release's digest stands for.
Fits = Callable[[Release, str], bool]
#: How rows of each kind are named; those of accounts by their findings.
NAMES = {
    "book": "the journal of {}",
    "term": "term {1} of dataset {0!r}",
    "account": "",
    "charge": "reservation {}",
    "release": "release {}",
    "run": "run {}",
    "granted": "what was granted of step {1!r} on dataset {0!r}",
    "claim": "the name {!r}",
}
MISSING = "the journal tells of it, and it has no row"


def problem_of(row: Row | None, told: str, output: str | None, fits: Fits) -> str:
    """Say what is wrong with a stored row; "" if nothing is.

    Args:
        row: The one that the journal comes to.
        told: The stored one.
        output: The value that is stored with it.
        fits: Checks the values of releases.
    """
    if row is None:
        return "it has a row, and no entry of the journal made it"
    ours = row_text(row)
    if told != ours and (problem := _difference(row._fields, ours, told)):
        return problem
    if output is None:
        return ""
    if not isinstance(row, Release):
        return "an output is kept with it, and it is no release"
    kept = row.state == "settled" and fits(row, output)
    return "" if kept else "its value is not the one that was kept"


def finding(key: Key, problem: str) -> Finding:
    """Return what is wrong with the row of a key."""
    if key[0] == "account":
        return Finding(account=key[1], problem=problem)
    return Finding(problem=f"{NAMES[key[0]].format(*key[1:])}: {problem}")


def _difference(names: Sequence[str], ours: str, told: str) -> str:
    """Say which field of a row is not what its journal comes to."""
    made = json.loads(ours)
    try:
        theirs = json.loads(told)
        pairs = [*zip(names, made, theirs, strict=False)]
    except (TypeError, ValueError):
        theirs, pairs = None, []
    if not isinstance(theirs, list) or len(theirs) != len(made):
        return f"its row says {told:.200}, its journal {ours:.200}"
    for name, one, other in pairs:
        # True is no 1, nor 1.0.
        if _plain(name, one) != _plain(name, other):
            return f"its row says {name} {_said(other)}, its journal {_said(one)}"
    return (
        "" if canonical(theirs) == told else f"its row is no text of ours: {told:.200}"
    )


def _plain(name: str, value: Any) -> str:
    """Write a field, without the order of a list in which it means nothing."""
    if name in ("refused", "halted") and isinstance(value, list):
        value = sorted(value, key=canonical)
    return canonical([value])


def _said(field: Any) -> str:
    return field if isinstance(field, str) else canonical([field])[1:-1]
