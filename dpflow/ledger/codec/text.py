"""From a value to its text and back, with the parts of the codec that it needs."""

# ruff: noqa: PLC0415 (a part, and with it its library, loads when a value needs it)

from __future__ import annotations

import json
import math
from datetime import tzinfo
from enum import Enum
from functools import partial
from typing import Any

from dpflow.exceptions import ReleaseError
from dpflow.ledger.codec import plain
from dpflow.ledger.codec.form import (
    MAX_DEPTH,
    TYPE_KEY,
    Node,
    Pack,
    Packer,
    Part,
    check_length,
    member,
    not_canonical,
    too_deep,
    unstorable,
)
from dpflow.ledger.entry import canonical
from dpflow.libraries import comes_from

_PARTS = ("declared", "numpy", "pandas", "polars", "pyarrow")


def encode(value: object) -> str:
    """Write a value as canonical JSON.

    Args:
        value: None, a bool, int, float, str, bytes, date, datetime, time, timedelta,
            Decimal, Fraction, UUID, numpy scalar or array, pandas Series, DataFrame,
            Timestamp, Interval or Period, polars Series or DataFrame, Arrow array or
            Table; or a list, tuple, dict, set or frozenset of such values.

    Returns:
        ASCII text of at most `MAX_TEXT` characters.

    Raises:
        ReleaseError: If the value, or one nested in it, cannot be stored exactly, or
            is too deep or too large. The text names its type and never the value.

    Examples:
        >>> encode((1, 2.5))
        '{"$type":"tuple","items":[1,2.5]}'
    """
    text = canonical(Packer(_packer_of).pack(value))
    check_length(text)
    return text


def decode(text: str) -> Any:
    """Read a value that `encode` wrote.

    Args:
        text: What `encode` returned.

    Returns:
        An equal value of the same type.

    Raises:
        ReleaseError: If the text is not of that form. Nothing in it is executed.
    """
    check_length(text)
    failure = ""
    try:
        return _unpack(_READER.decode(text), 0)
    except ReleaseError:
        raise
    except ImportError as error:
        # Pandas names no module when it misses pyarrow.
        failure = f"reading it needs {error.name or 'pyarrow'}, which is not installed"
    except Exception as error:  # noqa: BLE001
        failure = f"its text is damaged ({type(error).__name__})"
    # Outside the handler, so that the released value does not travel as context.
    msg = f"a stored release cannot be read: {failure}. Check the ledger and the setup."
    raise ReleaseError(msg)


def _packer_of(value: object) -> Pack:
    found = plain.packer_of(value)
    for name in _PARTS if found is None else ():
        if found is None and (name == "declared" or comes_from(value, name)):
            found = _part(name).packer_of(value)
    if found is None:
        raise unstorable(value, _hint(value))
    return found


def _part(name: str) -> Part:
    """Return the part for a library, or for what users declared; else the plain one."""
    part: Part = plain
    if name == "declared":
        from dpflow.ledger.codec import declared as part
    elif name == "numpy":
        from dpflow.ledger.codec import arrays as part
    elif name == "pandas":
        from dpflow.ledger.codec import frames as part
    elif name == "polars":
        from dpflow.ledger.codec import polars as part
    elif name == "pyarrow":
        from dpflow.ledger.codec import arrow as part
    return part


def _hint(value: object) -> str:
    if isinstance(value, complex):
        return "release its real and imaginary part as a pair of floats"
    if isinstance(value, Enum):
        return "put @releasable on its class, or convert it to its value"
    for kind in (int, float, str, bytes, list, tuple, dict, set, frozenset):
        if isinstance(value, kind):
            return f"convert it to a plain {kind.__name__} first"
    if isinstance(value, tzinfo):
        return "use datetime.timezone or zoneinfo.ZoneInfo"
    return (
        "return numbers, text, dates, lists, dicts, numpy arrays, pandas, polars or "
        "Arrow tables, or put @releasable on its dataclass, enum or pydantic model"
    )


def _object(pairs: list[tuple[str, Any]]) -> Node:
    node = dict(pairs)
    return node if len(node) == len(pairs) else not_canonical()


def _unpack(tree: Any, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise too_deep()
    unpack = partial(_unpack, depth=depth + 1)
    if isinstance(tree, list):
        return [unpack(item) for item in tree]
    if isinstance(tree, float) and not math.isfinite(tree):
        not_canonical("1e999")
    if not isinstance(tree, dict):
        return tree
    if TYPE_KEY not in tree:
        return {key: unpack(item) for key, item in tree.items()}
    name = member(tree, TYPE_KEY, str)
    handler = _part(name.partition(".")[0]).UNPACKERS.get(name)
    if handler is None:
        msg = (
            f"a stored release has the unknown type {name[:40]!r}; "
            "it was written by a newer dpflow or by something else."
        )
        raise ReleaseError(msg)
    return handler(tree, unpack)


_READER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=not_canonical)
