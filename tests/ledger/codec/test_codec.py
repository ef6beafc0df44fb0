"""The codec's law: what was stored comes back, equal and of the same type."""

from __future__ import annotations

import math
import re
import subprocess
import sys
import zoneinfo
from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field, make_dataclass
from datetime import UTC, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag, IntEnum
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, create_model

from dpflow.exceptions import ConfigurationError, ReleaseError
from dpflow.interop import releasable
from dpflow.ledger.codec import MAX_DEPTH, decode, encode, kinds
from tests.sizes import scaled
from tests.tables import read_tables

relaxed = settings(
    max_examples=scaled(24), deadline=None, suppress_health_check=list(HealthCheck)
)


def again(value: Any) -> Any:
    """Store a value and read it back, checking that its text is canonical."""
    text = encode(value)
    assert text.isascii()
    back = decode(text)
    assert encode(back) == text
    assert type(back) is type(value)
    return back


pytestmark = pytest.mark.quick
CASES = read_tables(__file__)

summer = timezone(timedelta(hours=2), "summer")
zones = st.sampled_from([None, UTC, zoneinfo.ZoneInfo("Europe/Berlin"), summer])
folded = st.datetimes(timezones=zones), st.times(timezones=zones)
texts = st.text(max_size=8) | st.text("\ud83d\ude00\udfff$typea\0")
scalars = st.one_of(
    *(st.none(), st.booleans(), st.floats(), texts, st.binary(max_size=20)),
    *(st.integers(), st.integers(-(2**2000), 2**2000), st.fractions(), st.uuids()),
    *(st.dates(), st.timedeltas(), *folded),
    *(each.map(lambda at: at.replace(fold=1)) for each in folded),
    st.decimals().filter(lambda number: not number.is_snan()),
)
hashables = st.recursive(
    scalars,
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=6,
)
values = st.recursive(
    scalars | hashables | st.sampled_from([Decimal("-0.00"), Decimal("-sNaN12")]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(texts | st.just("$type"), inner, max_size=4),
        st.dictionaries(hashables, inner, max_size=3),
        st.sets(hashables, max_size=4),
    ),
    max_leaves=20,
)


def described(value: Any) -> str:
    """Write a value with the types of all its parts; dicts and sets have no order."""
    if not isinstance(value, list | tuple | set | frozenset | dict):
        return f"{type(value).__name__} {value!r}"
    parts = map(described, value.items() if isinstance(value, dict) else value)
    ordered = parts if isinstance(value, list | tuple) else sorted(parts)
    return f"{type(value).__name__} {list(ordered)}"


@given(values)
@settings(relaxed, max_examples=scaled(100, push=40))
def test_values_come_back(value):
    """Whatever encode accepts comes back equal and of the same type."""
    assert described(value) == described(again(value))


def test_one_value_has_one_text():
    """The order of filling and of memory does not show; types do, and ints are long."""
    value = {"b": (1, math.nan), "a": {"$type": b"\0"}, "c": Fraction(1, 3)}
    assert encode(value) == (
        '{"a":{"$type":"dict","parts":[["$type",{"$type":"bytes","parts":["AA=="]}]]},'
        '"b":{"$type":"tuple","parts":[1,{"$type":"float","parts":["nan"]}]},'
        '"c":{"$type":"Fraction","parts":[1,3]}}'
    )
    assert encode({"a": 1, "b": 2}) == encode({"b": 2, "a": 1})
    assert encode({(1,): 1, 2: 2}) == encode({2: 2, (1,): 1})
    assert encode({8, 0, "x", (1,)}) == encode({(1,), "x", 0, 8})
    view = np.arange(6).reshape(2, 3).T[::-1]
    assert encode(np.ascontiguousarray(view)) == encode(view)
    ones = [1, 1.0, True, Decimal(1), Decimal("1.0"), Fraction(1), np.int64(1)]
    assert len(ones) == len({encode(one) for one in ones})
    assert again(-(2**20000)) == -(2**20000)


SECRET = 731_954_286
Colour = IntEnum("Colour", {"RED": SECRET})
Pair = namedtuple("Pair", "a b")  # noqa: PYI024
UNSTORABLE: list[Any] = [
    *(complex(SECRET), object(), lambda: SECRET, ValueError(SECRET), Colour(SECRET)),
    *(Pair(SECRET, 1), OrderedDict(a=SECRET), bytearray(b"731954286")),
    *(np.array([SECRET], dtype=kind) for kind in (object, complex, np.longdouble)),
    np.array([(SECRET,)], dtype=[("a", "i8")]),
    *(np.ma.array([SECRET]), np.longlong(SECRET), pd.arrays.SparseArray([SECRET])),
]


@pytest.mark.parametrize("value", UNSTORABLE, ids=lambda value: type(value).__name__)
def test_other_values_are_refused(value):
    """The error names the type, also of a nested value, and never the value."""
    for nested in (value, {"key731954": [value]}, (value,)):
        with pytest.raises(ReleaseError, match=rf"{type(value).__name__} can") as error:
            encode(nested)
        assert "73195" not in f"{error.value} {error.value.details}"
        assert error.value.__context__ is None


def test_depth():
    """Exactly MAX_DEPTH containers fit; loops end in a clear error."""
    value: Any = 0
    for _ in range(MAX_DEPTH):
        value = (value,)
    assert value == again(value)
    loop: list[Any] = []
    loop.append(loop)
    for deeper in ([value], loop, {"a": value}):
        with pytest.raises(ReleaseError, match="deeper than 50 levels"):
            encode(deeper)
    for depth, problem in ((52, "deeper than 50 levels"), (10**6, "RecursionError")):
        with pytest.raises(ReleaseError, match=problem):
            decode("[" * depth + "]" * depth)


def test_size(monkeypatch):
    """Values beyond MAX_TEXT are refused before their text is built."""
    monkeypatch.setattr(kinds, "MAX_TEXT", 2**20)
    names = ["x" * 1021] * 1023 + ["x" * 1020]
    assert len(encode(names)) == kinds.MAX_TEXT
    shared: list[Any] = ["x"]
    for _ in range(45):
        shared = [shared, shared]
    big = np.broadcast_to(np.zeros(1), (10**12,))
    long = ["x" * 2**20, "é" * (2**20 // 5), b"\0" * (2**20 * 3 // 4)]
    for value in (*long, shared, big, [*names[1:], "x" * 1022]):
        with pytest.raises(ReleaseError, match="more than 1 MiB"):
            encode(value)
    with pytest.raises(ReleaseError, match="more than 1 MiB"):
        decode(" " * (2**20 + 1))


@pytest.mark.parametrize("text", CASES["damaged"])
def test_damaged_text_is_refused(text):
    """Its error does not carry what was read."""
    with pytest.raises(ReleaseError, match="damaged") as error:
        decode(text.replace("long number", "9" * 5000))
    assert error.value.__context__ is None


@pytest.mark.parametrize(("name", "parts"), CASES["named"])
def test_what_text_names_is_not_called(name, parts):
    """Unknown types, arrays of objects and columns of the wrong length are refused."""
    with pytest.raises(ReleaseError, match=r"unknown type|damaged"):
        decode(f'[{{"$type":"{name}","parts":[{parts}]}}]')


def test_plain_values_load_no_library():
    """They need neither numpy nor pandas."""
    code = (
        "import sys; from dpflow.ledger.codec import encode, decode; "
        "decode(encode({'a': (1, 2.5)})); "
        "assert {'json', 'numpy', 'pandas'} & {*sys.modules} == {'json'}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# Declared classes


@releasable
@dataclass(frozen=True)
class Range:
    """A part of a summary, with a check of its own."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if self.low > self.high:
            msg = "low above high"
            raise ValueError(msg)


@releasable
class Model(BaseModel):
    """A pydantic model that takes any field."""

    model_config = ConfigDict(extra="allow")
    name: str
    parts: list[Range]


@releasable
class Kind(Enum):
    """How a report came out."""

    BAD = "bad"


@releasable
@dataclass
class Summary:
    """A dataclass with fields of many kinds."""

    customers: int
    spend: object
    by_week: dict[str, tuple[int, ...]] = field(default_factory=dict)


def test_a_declared_value_comes_back():
    """Equal and of the same type, from canonical text; its own checks run."""
    summary = Summary(3, Range(0, 1), {"w1": (1, 2)})
    for value in (summary, [summary, {"m": Model(name="", parts=[])}], (Kind.BAD,)):
        assert again(value) == value
    text = encode(Range(1, 2)).replace('"high":2', '"high":0')
    with pytest.raises(ReleaseError, match="damaged"):
        decode(text)


def test_a_declared_class_vouches_for_itself_only():
    """Neither for its subclasses nor for what its fields hold, and values stay out."""
    secret = make_dataclass("Undeclared", ["secret"])(4711)
    below = type("Below", (Summary,), {})(1, None)
    for value, problem in (
        # Names of classes that no module has may be made of data.
        *((below, "Summary cannot"), (Summary(1, secret), "object.*releasable")),
        (Model(name="", parts=[], more=4711), "does not declare"),
    ):
        with pytest.raises(ReleaseError, match=problem) as refused:
            encode(value)
        assert not re.search("4711|Below|Undeclared", str(refused.value))


class Hidden(BaseModel):
    """Holds something that is no field."""

    _cache: int = 0


UNDECLARABLE = [
    *(int, object(), "Summary", Hidden, Flag("Rights", ["READ"])),
    # A model that reads under another name, and a field that no constructor takes.
    create_model("Aliased", name=(str, Field(alias="Name"))),
    make_dataclass("Derived", [("twice", int, field(init=False, default=0))]),
]


def test_what_could_not_be_made_again_cannot_be_declared():
    """It is said when the class is declared."""
    for cls in UNDECLARABLE:
        with pytest.raises(ConfigurationError, match="cannot be releasable"):
            releasable(cls)


def test_a_class_is_read_once_its_module_has_declared_it(monkeypatch):
    """The error before says what to do."""
    for name in ("KINDS", "_BY_NAME"):
        monkeypatch.setattr(kinds, name, {**getattr(kinds, name)})
    dot = make_dataclass("Dot", ["x"])
    dot.__module__ = "dots"
    text = '{"$type":"declared.dots.Dot","parts":[{"x":1}]}'
    with pytest.raises(ReleaseError, match=r"dots\.Dot.*imported before the replay"):
        decode(text)
    assert again(releasable(dot)(1)) == decode(text)
