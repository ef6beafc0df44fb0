"""Bad inputs of costs, requests and tallies: none is accepted; the ledger stays."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from dpflow import ZCDP, ApproxDP, Gaussian, Laplace, PureDP
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import DpflowError
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.records import Request
from tests.hunts.machinery.memory import MemoryStorage, tables_in_memory
from tests.hunts.machinery.support import SimulatedOwners, replace_everywhere
from tests.ledger.support import granted, make_policy

LONG = 10**6
NUMBERS: list[Any] = [
    *(math.nan, math.inf, -math.inf, -1, -0.5, 1e300, 2**62, True, None, "", "nan"),
    *("0x10", "1/0", "1e400", "1e999999999", "\0", "1\0", "\ud800", "NaN123", b"1"),
    *(1j, object(), [1], {1}, Decimal("sNaN"), Fraction(-1, 3), int, np.bool_(True)),
    *(np.int64(-1), np.float64("nan"), np.array([1.0]), memoryview(b"1"), "9" * LONG),
]
COSTS: list[Callable[[Any], object]] = [
    lambda n: PureDP(epsilon=n),
    lambda n: ApproxDP(epsilon=1, delta=n),
    lambda n: ZCDP(rho=n),
    lambda n: Gaussian(sensitivity=n, sigma=1),
    lambda n: Gaussian(sensitivity=1, noise_multiplier=n),
    lambda n: Laplace(sensitivity=1, scale=n),
]
NO_TEXT: list[Any] = [5, 0.5, True, b"x", ["x"], {}, object(), math.nan, 2**62]
NO_NAME: list[Any] = [*NO_TEXT, "\0", "a\0b", "\ud800", "x" * LONG, ""]
NO_ID: list[Any] = [*NO_NAME, None, "a b", "a\n", "é", "x" * 201, "a;b"]
POLICY = make_policy()
GOOD: dict[str, Any] = {
    "reservation": "r",
    "owner": "o",
    "policies": (POLICY,),
    "cost": PureDP(epsilon="0.1"),
    "step": "count",
}
FIELDS: dict[str, list[Any]] = {
    "reservation": NO_ID,
    "owner": NO_ID,
    "step": [*NO_NAME, None],
    "flow": NO_NAME,
    "flow_run": NO_NAME,
    "enclosing_runs": [(name,) for name in NO_NAME],
    "partitions": [(name,) for name in NO_ID],
    "release_key": [*NO_TEXT, "\0", "g" * 64, "0" * 63, "A" * 64, ""],
    "key_text": [*NO_TEXT, "\0", "\ud800", None],
    "policies": [(), (POLICY, POLICY), None, "a", POLICY, (None,), 5],
    "cost": [None, 1, "0.1", {}, PureDP, Tally((1,)), POLICY],
    "body": [None, 5, "text", [1], {"x": math.nan}, {"x": object()}, {(1, 2): 1}],
}
TALLIES: list[Any] = [
    *("", "null", "5", "{}", '"12"', "[1.0]", "[-1]", "[true]", "[NaN]", '["1"]'),
    *("[null]", "[[1]]", "[1e3]", "[1,]", "[1", "[0x1]", "[01]", "\0", "[1]\0", "[1]]"),
    *("[" * LONG, "[" + "9" * 5000 + "]", None, 5, [1], {}, object()),
]
VECTORS: list[Any] = [True, -1, 1.0, math.nan, "1", None, np.int64(1), b"1"]


def accepted() -> Iterator[str]:
    """Send every bad input; yield each that no error of its kind refused."""
    ledger: Any = Ledger(MemoryStorage(tables_in_memory()), SimulatedOwners(set()))
    granted(ledger, PureDP(epsilon=0.1))
    before = list(ledger.storage.connection.iterdump())
    refusals = (ValueError, TypeError, RecursionError)
    inputs: list[tuple[Any, tuple[type[Exception], ...], Callable[[], object]]] = [
        *((n, (DpflowError,), lambda m=m, n=n: m(n)) for m in COSTS for n in NUMBERS),
        *(
            ((name, value), (DpflowError,), lambda n=name, v=value: send(ledger, n, v))
            for name, values in FIELDS.items()
            for value in values
        ),
        *((text, refusals, lambda t=text: Tally.from_text(t)) for text in TALLIES),
        *((value, refusals, lambda v=value: Tally((1, v))) for value in VECTORS),
        *(
            (name, (DpflowError,), lambda e=end, n=name: e(n))
            for end in (ledger.settle, lambda n: ledger.void(n, reason="test"))
            for name in ("x", *NO_NAME)
        ),
    ]
    for value, kinds, call in inputs:
        try:
            call()
        except kinds:
            continue
        except Exception as error:
            yield f"{value!r:.80}: {error!r:.200}"
        else:
            yield f"{value!r:.80}"
    if before != list(ledger.storage.connection.iterdump()):
        yield "the ledger moved"


def send(ledger: Ledger, name: str, value: object) -> None:
    """Reserve with one bad field."""
    ledger.reserve(Request(**{**GOOD, name: value}))


def test_no_bad_input_is_accepted() -> None:
    """Types, NaN, 2^62, NUL, surrogates and texts of a megabyte are refused."""
    assert list(accepted()) == []


def test_a_missing_check_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same inputs find a check of names and one of tallies that are missing."""
    replace_everywhere(monkeypatch, "_check", lambda _: lambda *_: None)
    monkeypatch.setattr(Tally, "__post_init__", lambda _: None)
    found = "\n".join(accepted())
    assert "'reservation'" in found
    assert "-1" in found.splitlines()
