"""The codec's law: what was stored comes back, equal and of the same type."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import zoneinfo
from collections import OrderedDict, namedtuple
from datetime import UTC, timedelta, timezone
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpflow.exceptions import ReleaseError
from dpflow.ledger.codec import MAX_DEPTH, decode, encode, kinds
from tests.ledger.codec.stored import again
from tests.sizes import scaled

pytestmark = pytest.mark.quick

relaxed = settings(
    max_examples=scaled(24), deadline=None, suppress_health_check=list(HealthCheck)
)
BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")


def described(value: Any) -> str:
    """Write a value with the types of all its parts; dicts and sets have no order."""
    if isinstance(value, list | tuple):
        body = ", ".join(map(described, value))
    elif isinstance(value, set | frozenset):
        body = ", ".join(sorted(map(described, value)))
    elif isinstance(value, dict):
        body = ", ".join(sorted(map(described, value.items())))
    else:
        body = repr(value)
    return f"{type(value).__name__}[{body}]"


def same(first: Any, second: Any) -> bool:
    """Tell whether two values are equal with equal types, all the way down."""
    return described(first) == described(second)


zones = st.one_of(
    st.none(),
    st.builds(timezone, st.timedeltas(timedelta(hours=-23), timedelta(hours=23))),
    st.just(timezone(timedelta(hours=2), "summer")),
    st.sampled_from([UTC, BERLIN, zoneinfo.ZoneInfo("America/New_York")]),
)
texts = st.text(st.characters(), max_size=8) | st.text("\ud83d\ude00\udfff$typea\0")
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**2000), 2**2000),
    st.floats(),
    texts,
    st.binary(max_size=20),
    st.dates(),
    st.datetimes(timezones=zones) | st.datetimes().map(lambda at: at.replace(fold=1)),
    st.timedeltas(),
    st.times(timezones=zones) | st.times().map(lambda at: at.replace(fold=1)),
    st.uuids(),
    st.decimals().filter(lambda number: not number.is_snan()),
    st.fractions(),
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
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(texts | st.just("$type"), inner, max_size=4),
        st.dictionaries(hashables, inner, max_size=3),
        st.sets(hashables, max_size=4),
    ),
    max_leaves=20,
)


class TestPython:
    """Values of the standard library."""

    @given(values)
    @settings(relaxed, max_examples=scaled(100, push=40))
    def test_round_trip(self, value: Any) -> None:
        """Whatever encode accepts comes back equal and of the same type."""
        assert same(value, again(value))

    def test_text(self) -> None:
        """The text is compact, sorted and typed."""
        value = {"b": (1, math.nan), "a": {"$type": b"\0"}, "c": Fraction(1, 3)}
        expected = (
            '{"a":{"$type":"dict","parts":[["$type",{"$type":"bytes","parts":["AA=="]}]'
            ']},"b":{"$type":"tuple","parts":[1,{"$type":"float","parts":["nan"]}]},'
            '"c":{"$type":"Fraction","parts":[1,3]}}'
        )
        assert expected == encode(value)

    def test_one_value_one_text(self) -> None:
        """The order of filling and of memory does not show; types do."""
        assert encode({"a": 1, "b": 2}) == encode({"b": 2, "a": 1})
        assert encode({(1,): 1, 2: 2}) == encode({2: 2, (1,): 1})
        assert encode({8, 0, "x", (1,)}) == encode({(1,), "x", 0, 8})
        view = np.arange(6).reshape(2, 3).T[::-1]
        assert encode(np.ascontiguousarray(view)) == encode(view)
        ones = [1, 1.0, True, Decimal(1), Decimal("1.0"), Fraction(1), np.int64(1)]
        assert len(ones) == len({encode(one) for one in ones})
        assert encode({1}) != encode({1.0})


class Colour(IntEnum):
    """An int that is more than an int."""

    RED = 731954286


SECRET = 731_954_286
Pair = namedtuple("Pair", "a b")  # noqa: PYI024
LOOP: list[Any] = []
LOOP.append(LOOP)
UNSTORABLE: list[tuple[Any, str]] = [
    (complex(SECRET), "complex"),
    (object(), "object"),
    (lambda: SECRET, "function"),
    (ValueError(SECRET), "ValueError"),
    (Colour.RED, "Colour"),
    (Pair(SECRET, 1), "Pair"),
    (OrderedDict(a=SECRET), "OrderedDict"),
    (bytearray(b"731954286"), "bytearray"),
    (np.array([SECRET], dtype=object), "ndarray"),
    (np.array([SECRET], dtype=complex), "ndarray"),
    (np.array([SECRET], dtype=np.longdouble), "ndarray"),
    (np.array([(SECRET,)], dtype=[("a", "i8")]), "ndarray"),
    (np.ma.array([SECRET]), "MaskedArray"),
    (np.longlong(SECRET), "longlong"),
    (pd.Series([SECRET], dtype="Sparse[int]"), "SparseArray"),
]


NAMES = [
    *kinds._BY_NAME,
    "numpy.array",
    "pandas.Series",
    "pandas.DataFrame",
    "pandas.Interval",
    "pandas.Period",
]
junk: st.SearchStrategy[Any] = st.one_of(
    st.none() | st.integers(-9, 9) | st.floats(allow_nan=False) | st.text("<i8=A1"),
    st.lists(st.deferred(lambda: junk), max_size=3),
    st.builds(
        lambda name, parts: {"$type": name, "parts": parts},
        st.sampled_from(NAMES),
        st.lists(st.deferred(lambda: junk), max_size=4) | st.deferred(lambda: junk),
    ),
)


class TestRefusals:
    """What cannot be stored or read is refused, quietly about the value."""

    @pytest.mark.parametrize(("value", "name"), UNSTORABLE, ids=lambda v: str(v)[:12])
    def test_unstorable(self, value: Any, name: str) -> None:
        """The error names the type, also of a nested value, and never the value."""
        for nested in (value, {"key731954": [value]}, (value,)):
            with pytest.raises(ReleaseError, match=rf"type \S*{name} ") as caught:
                encode(nested)
            assert "73195" not in f"{caught.value} {caught.value.details}"
            assert caught.value.__context__ is None

    def test_depth(self) -> None:
        """Exactly MAX_DEPTH containers fit; loops end in a clear error."""
        value: Any = 0
        for _ in range(MAX_DEPTH):
            value = (value,)
        assert same(value, again(value))
        for deeper in ([value], LOOP, {"a": value}):
            with pytest.raises(ReleaseError, match="deeper than 50 levels"):
                encode(deeper)
        with pytest.raises(ReleaseError, match="deeper than 50 levels"):
            decode("[" * 52 + "]" * 52)
        with pytest.raises(ReleaseError, match="RecursionError"):
            decode("[" * 10**6)

    def test_size(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Values beyond MAX_TEXT are refused before their text is built."""
        monkeypatch.setattr(kinds, "MAX_TEXT", 2**20)
        names, last = ["x" * 1021] * 1023, "x" * 1020
        assert [*names, last] == decode(encode([*names, last]))
        assert len(encode([*names, last])) == kinds.MAX_TEXT
        fits = b"\0" * (kinds.MAX_TEXT * 3 // 4 - 100)
        assert fits == decode(encode(fits))
        shared: list[Any] = ["x"]
        for _ in range(45):
            shared = [shared, shared]
        big = np.broadcast_to(np.zeros(1), (10**12,))
        for value in (
            "x" * kinds.MAX_TEXT,
            "é" * (kinds.MAX_TEXT // 5),
            fits * 2,
            shared,
            big,
            [*names, f"{last}x"],
        ):
            with pytest.raises(ReleaseError, match="more than 1 MiB"):
                encode(value)
        with pytest.raises(ReleaseError, match="more than 1 MiB"):
            decode(" " * (kinds.MAX_TEXT + 1))

    @pytest.mark.parametrize(
        "text",
        ["", "{", "9" * 5000, '"\\u12"', "[1]x", '{"$type":"tuple"}'],
    )
    def test_not_json(self, text: str) -> None:
        """Damaged JSON is refused."""
        with pytest.raises(ReleaseError, match="damaged") as caught:
            decode(text)
        assert caught.value.__context__ is None

    @pytest.mark.parametrize("name", ["object", "os.system", "numpy.load", "pickle"])
    def test_unknown_type(self, name: str) -> None:
        """A type that nobody registered is refused by name."""
        with pytest.raises(ReleaseError, match=f"unknown type '{name}'"):
            decode(f'[{{"$type":"{name}","parts":[]}}]')

    @given(junk)
    @settings(relaxed, max_examples=scaled(40))
    def test_junk(self, tree: Any) -> None:
        """Any other text is read or refused; no other error gets out."""
        try:
            decode(json.dumps(tree))
        except ReleaseError as error:
            assert error.message  # noqa: PT017

    def test_imports_wait(self) -> None:
        """Plain values need neither numpy nor pandas."""
        code = (
            "import sys; from dpflow.ledger.codec import encode, decode; "
            "decode(encode({'a': (1, 2.5)})); "
            "print([n for n in ('numpy', 'pandas') if n in sys.modules])"
        )
        answer = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        )
        assert (answer.stdout.strip(), answer.stderr) == ("[]", "")
