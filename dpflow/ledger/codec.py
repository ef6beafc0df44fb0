"""Values as text: how settled releases are stored, without pickle.

`encode` writes canonical JSON, `decode` reads it back to the same value of the same
type; neither ever executes anything that the text names. Plain JSON values stand for
themselves. Everything else is an object with the key "$type":

    tuple, set, frozenset    items
    dict                     pairs, where JSON objects do not do (see `_pack_dict`)
    bytes                    base64
    int, float, str          huge ints (hex), NaN and infinities, lone surrogates
    date, datetime, timedelta, timezone, ZoneInfo, Decimal, Fraction
    numpy.*, pandas.*        in `codec_frames`
    polars.*                 in `codec_polars`
    declared                 dataclasses and pydantic models, in `codec_declared`

Canonical means: one value, one text, whatever the order in which a set or a dict was
filled. So dicts come back with their keys sorted.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterable
from datetime import date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any, NoReturn, cast
from zoneinfo import ZoneInfo

from dpflow.exceptions import ReleaseError
from dpflow.ledger import codec_foreign

#: Longest text that a ledger row holds, in characters (all of them ASCII).
MAX_TEXT = 16 * 2**20

#: Deepest nesting of containers.
MAX_DEPTH = 50

#: The key that marks a JSON object as a typed value.
TYPE_KEY = "$type"

# Python refuses to write or read decimal ints of more than 4300 digits.
_INT_BITS = 1024

#: Reads one nested value.
Unpack = Callable[[Any], Any]


def encode(value: object) -> str:
    """Write a value as canonical JSON.

    Args:
        value: None, a bool, int, float, str, bytes, date, datetime, timedelta,
            Decimal, Fraction, numpy scalar or array, pandas Series, DataFrame or
            Timestamp; or a list, tuple, dict, set or frozenset of such values.

    Returns:
        ASCII text of at most `MAX_TEXT` characters.

    Raises:
        ReleaseError: If the value, or one nested in it, cannot be stored exactly, or
            is too deep or too large. The text names its type and never the value.

    Examples:
        >>> encode((1, 2.5))
        '{"$type":"tuple","items":[1,2.5]}'
    """
    text = _dump(Packer().pack(value))
    if len(text) > MAX_TEXT:
        raise _too_large()
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
    if len(text) > MAX_TEXT:
        raise _too_large()
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


def unstorable(value: object, hint: str) -> ReleaseError:
    """Build the error for a value that cannot be stored; it names the type only."""
    kind = type(value)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    name = f"{module}{kind.__qualname__}"
    return ReleaseError(f"a value of type {name} cannot be stored; {hint}.", type=name)


class Packer:
    """Turns one value into a tree of plain JSON values, within the limits."""

    def __init__(self) -> None:
        self._depth = 0
        self._room = MAX_TEXT + 1

    def take(self, characters: int) -> None:
        """Account for text to come, so that no huge tree is built in vain."""
        self._room -= characters
        if self._room < 0:
            raise _too_large()

    def pack(self, value: Any) -> Any:
        """Return the tree of a value."""
        # A value and its comma; of a list's two brackets one stands for a comma.
        self.take(2)
        if self._depth > MAX_DEPTH:
            raise _too_deep()
        pack = _PACKERS.get(type(value)) or _pack_foreign
        self._depth += 1
        tree = pack(self, value)
        self._depth -= 1
        return tree

    def pack_all(self, values: Iterable[Any]) -> list[Any]:
        """Return the trees of several values."""
        return [self.pack(value) for value in values]


def _dump(tree: object) -> str:
    return json.dumps(
        tree, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )


def _too_large() -> ReleaseError:
    return ReleaseError(
        f"the value needs more than {MAX_TEXT // 2**20} MiB of text and cannot be "
        "stored; release fewer numbers, or a numpy array in place of a list."
    )


def _too_deep() -> ReleaseError:
    return ReleaseError(
        f"the value is nested deeper than {MAX_DEPTH} levels (or contains itself) and "
        "cannot be stored; release a flatter value."
    )


# ---- values to trees


def _pack_itself(_: Packer, value: object) -> object:
    return value


def _pack_int(packer: Packer, value: int) -> object:
    if value.bit_length() <= _INT_BITS:
        return value
    packer.take(value.bit_length() // 4)
    return {TYPE_KEY: "int", "hex": format(value, "x")}


def _pack_float(_: Packer, value: float) -> object:
    return value if math.isfinite(value) else {TYPE_KEY: "float", "text": repr(value)}


def _pack_str(packer: Packer, value: str) -> object:
    packer.take(len(value))
    if _is_unicode(value):
        return value
    # JSON would join two lone surrogates that meet into one character.
    data = value.encode("utf-8", "surrogatepass")
    return {TYPE_KEY: "str", "utf8": to_base64(data)}


def _is_unicode(value: str) -> bool:
    return value.isascii() or not any("\ud800" <= sign <= "\udfff" for sign in value)


def _pack_bytes(packer: Packer, value: bytes) -> object:
    packer.take(len(value) * 4 // 3)
    return {TYPE_KEY: "bytes", "base64": to_base64(value)}


def _pack_tuple(packer: Packer, value: tuple[Any, ...]) -> object:
    return {TYPE_KEY: "tuple", "items": packer.pack_all(value)}


def _pack_set(packer: Packer, value: set[Any] | frozenset[Any]) -> object:
    items = sorted(packer.pack_all(value), key=_dump)
    return {TYPE_KEY: type(value).__name__, "items": items}


def _pack_dict(packer: Packer, value: dict[Any, Any]) -> object:
    """Use a JSON object where one will do, else pairs sorted by the text of the key."""
    plain = all(type(key) is str and _is_unicode(key) for key in value)
    if plain and TYPE_KEY not in value:
        packer.take(sum(map(len, value)))
        return {key: packer.pack(item) for key, item in value.items()}
    pairs = [[packer.pack(key), packer.pack(item)] for key, item in value.items()]
    return {TYPE_KEY: "dict", "pairs": sorted(pairs, key=lambda pair: _dump(pair[0]))}


def _pack_datetime(packer: Packer, value: datetime) -> object:
    zone = None if value.tzinfo is None else packer.pack(value.tzinfo)
    clock = value.replace(tzinfo=None, fold=0).isoformat()
    return {TYPE_KEY: "datetime", "iso": clock, "fold": value.fold, "zone": zone}


def _pack_timedelta(_: Packer, value: timedelta) -> object:
    parts = [value.days, value.seconds, value.microseconds]
    return {TYPE_KEY: "timedelta", "parts": parts}


def _pack_timezone(packer: Packer, value: timezone) -> object:
    # What pickle would keep: the offset and, if one was given, the name.
    arguments = cast("Any", value).__getinitargs__()
    return {TYPE_KEY: "timezone", "arguments": packer.pack_all(arguments)}


def _pack_zone(_: Packer, value: ZoneInfo) -> object:
    if value.key is None:
        raise unstorable(value, "use a zone that has a name, such as ZoneInfo('UTC')")
    return {TYPE_KEY: "ZoneInfo", "key": value.key}


def _pack_decimal(packer: Packer, value: Decimal) -> object:
    text = str(value)
    packer.take(len(text))
    return {TYPE_KEY: "Decimal", "text": text}


def _pack_fraction(packer: Packer, value: Fraction) -> object:
    parts = packer.pack_all([value.numerator, value.denominator])
    return {TYPE_KEY: "Fraction", "parts": parts}


def _pack_foreign(packer: Packer, value: object) -> object:
    """Pack what a library made or its author declared; nothing else can be stored."""
    tree = codec_foreign.pack(packer, value)
    if tree is None:
        raise unstorable(value, _hint(value))
    return tree


def _hint(value: object) -> str:
    if isinstance(value, complex):
        return "release its real and imaginary part as a pair of floats"
    for plain in (int, float, str, bytes, list, tuple, dict, set, frozenset):
        if isinstance(value, plain):
            return f"convert it to a plain {plain.__name__} first"
    if isinstance(value, tzinfo):
        return "use datetime.timezone or zoneinfo.ZoneInfo"
    return (
        "return numbers, text, dates, lists, dicts, numpy arrays, pandas or polars "
        "frames, or put @releasable on its dataclass or pydantic model"
    )


_PACKERS: dict[type, Callable[[Packer, Any], object]] = {
    type(None): _pack_itself,
    bool: _pack_itself,
    int: _pack_int,
    float: _pack_float,
    str: _pack_str,
    bytes: _pack_bytes,
    list: Packer.pack_all,
    tuple: _pack_tuple,
    set: _pack_set,
    frozenset: _pack_set,
    dict: _pack_dict,
    date: lambda _, value: {TYPE_KEY: "date", "iso": value.isoformat()},
    datetime: _pack_datetime,
    timedelta: _pack_timedelta,
    timezone: _pack_timezone,
    ZoneInfo: _pack_zone,
    Decimal: _pack_decimal,
    Fraction: _pack_fraction,
}


# ---- trees to values


def to_base64(data: bytes) -> str:
    """Write bytes as text."""
    return base64.b64encode(data).decode("ascii")


def from_base64(text: str) -> bytes:
    """Read bytes from text, strictly."""
    return base64.b64decode(text, validate=True)


def member(node: dict[str, Any], name: str, kind: type) -> Any:
    """Return a member of a typed node, which must have exactly the given type."""
    value = node[name]
    if type(value) is not kind:
        raise TypeError(name)
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    node = dict(pairs)
    if len(node) != len(pairs):
        _not_canonical("")
    return node


def _not_canonical(_: str) -> NoReturn:
    msg = "not canonical"
    raise ValueError(msg)


def _unpack(tree: Any, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise _too_deep()
    unpack = partial(_unpack, depth=depth + 1)
    if isinstance(tree, list):
        return [unpack(item) for item in tree]
    if isinstance(tree, float) and not math.isfinite(tree):
        _not_canonical("1e999")
    if not isinstance(tree, dict):
        return tree
    if TYPE_KEY not in tree:
        return {key: unpack(item) for key, item in tree.items()}
    name = member(tree, TYPE_KEY, str)
    handler = codec_foreign.unpacker(name) or _UNPACKERS.get(name)
    if handler is None:
        msg = (
            f"a stored release has the unknown type {name[:40]!r}; "
            "it was written by a newer dpflow or by something else."
        )
        raise ReleaseError(msg)
    return handler(tree, unpack)


def _unpack_items(kind: Any, node: dict[str, Any], unpack: Unpack) -> Any:
    items = [unpack(item) for item in member(node, "items", list)]
    value = kind(items)
    return value if len(value) == len(items) else _not_canonical("")


def _unpack_dict(node: dict[str, Any], unpack: Unpack) -> dict[Any, Any]:
    pairs = member(node, "pairs", list)
    value = {unpack(key): unpack(item) for key, item in pairs}
    return value if len(value) == len(pairs) else _not_canonical("")


def _unpack_datetime(node: dict[str, Any], unpack: Unpack) -> datetime:
    clock = datetime.fromisoformat(member(node, "iso", str))
    return clock.replace(tzinfo=unpack(node["zone"]), fold=member(node, "fold", int))


def _unpack_float(node: dict[str, Any], _: Unpack) -> float:
    return {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[node["text"]]


def _unpack_str(node: dict[str, Any], _: Unpack) -> str:
    return from_base64(member(node, "utf8", str)).decode("utf-8", "surrogatepass")


_READER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_not_canonical)

_UNPACKERS: dict[str, Callable[[dict[str, Any], Unpack], Any]] = {
    "int": lambda node, _: int(member(node, "hex", str), 16),
    "float": _unpack_float,
    "str": _unpack_str,
    "bytes": lambda node, _: from_base64(member(node, "base64", str)),
    "tuple": partial(_unpack_items, tuple),
    "set": partial(_unpack_items, set),
    "frozenset": partial(_unpack_items, frozenset),
    "dict": _unpack_dict,
    "date": lambda node, _: date.fromisoformat(member(node, "iso", str)),
    "datetime": _unpack_datetime,
    "timedelta": lambda node, _: timedelta(*member(node, "parts", list)),
    "timezone": lambda node, unpack: timezone(*map(unpack, node["arguments"])),
    "ZoneInfo": lambda node, _: ZoneInfo(member(node, "key", str)),
    "Decimal": lambda node, _: Decimal(member(node, "text", str)),
    "Fraction": lambda node, unpack: Fraction(*map(unpack, node["parts"])),
}
