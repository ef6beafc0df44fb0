"""What nobody should send: numbers, names, requests and tallies to be refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from random import Random
from typing import Any

import numpy as np

from dpflow import ZCDP, ApproxDP, Gaussian, Laplace, PureDP
from dpflow.accounting.rules.tally import Tally
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.records import Request
from tests.ledger.support import make_policy

POLICY = make_policy()
LONG = 10**6

#: No finite number, or none that any cost allows.
NUMBERS: list[Any] = [
    *(math.nan, math.inf, -math.inf, -1, -0.5, 1e300, -1e-300, 2**62, -(2**62)),
    *(2**64, True, False, None, "", " ", "nan", "inf", "-inf"),
    *("many", "0x10", "1,5", "1/0", "1//2", "1e400", "1e-400", "1e999999999", "--1"),
    *("\0", "1\0", "\ud800", "1\ud800", "NaN123", b"1", bytearray(b"1"), 1j, object()),
    *([1], (1,), {}, {1}, [], Decimal("NaN"), Decimal("sNaN"), Decimal("-Infinity")),
    *(Decimal("1e400"), Fraction(-1, 3), int, math.sqrt),
    *(np.int64(-1), np.float64("nan"), np.float32("inf"), np.bool_(True)),
    *(np.array([1.0]), np.datetime64("2026-11-21"), memoryview(b"1")),
]
#: Too long to try each time.
LONG_NUMBERS: list[Any] = [
    *("9" * LONG, "1e" + "9" * 1000, "0." + "0" * LONG + "1", 2**5000, 10**4400),
    *(Fraction(1, 2**5000), Fraction(10**4400)),
]
LONG_TEXTS = ["x" * LONG, "\0" * LONG, "\ud800" * LONG]
ZEROS: list[Any] = [0, 0.0, -0.0, "0", Fraction(0), Decimal(0), np.int64(0)]

#: Which costs a bad number spoils, and whether zero is bad there.
COSTS: list[tuple[Callable[[Any], object], bool]] = [
    (lambda n: PureDP(epsilon=n), True),
    (lambda n: ApproxDP(epsilon=n, delta=0), True),
    (lambda n: ApproxDP(epsilon=1, delta=n), False),
    (lambda n: ZCDP(rho=n), True),
    (lambda n: Gaussian(sensitivity=n, sigma=1), True),
    (lambda n: Gaussian(sensitivity=1, sigma=n), True),
    (lambda n: Gaussian(sensitivity=1, noise_multiplier=n), True),
    (lambda n: Laplace(sensitivity=n, scale=1), True),
    (lambda n: Laplace(sensitivity=1, scale=n), True),
    (lambda n: Laplace(sensitivity=1, epsilon=n), True),
]

NO_TEXT: list[Any] = [5, 0.5, True, b"x", ["x"], ("x",), {}, object(), math.nan, 2**62]
NO_NAME: list[Any] = [*NO_TEXT, "\0", "a\0b", "\ud800", "a\udfff", "\udc80" * 9]
NO_ID: list[Any] = [*NO_NAME, "a b", "\n", "a\n", "é", "x" * 201, "a;b", ""]
NO_KEY: list[Any] = [*NO_NAME, "g" * 64, "0" * 63, "0" * 65, "A" * 64, ""]
LONG_NAMES = ["x" * 401, ""]
NO_COST: list[Any] = [None, 1, 0.1, "0.1", {}, PureDP, b"", Tally((1,)), POLICY, []]
NO_POLICIES: list[Any] = [(), (POLICY, POLICY), None, "a", POLICY, (None,), ("a",), 5]
NO_BODY: list[Any] = [
    *(None, 5, "text", [1], [], {"x": math.nan}, {"x": math.inf}, {"x": object()}),
    *({"x": b"1"}, {"x": {1}}, {(1, 2): 1}, {"x": np.int64(1)}, {"x": Fraction(1)}),
]
GOOD: dict[str, Any] = {
    "reservation": "r",
    "owner": "o",
    "policies": (POLICY,),
    "cost": PureDP(epsilon="0.1"),
    "step": "count",
}
#: What spoils each field of a request.
FIELDS: dict[str, list[Any]] = {
    "reservation": [*NO_ID, None],
    "owner": [*NO_ID, None],
    "step": [*NO_NAME, *LONG_NAMES, None],
    "flow": [*NO_NAME, *LONG_NAMES],
    "flow_run": [*NO_NAME, *LONG_NAMES],
    "enclosing_runs": [(name,) for name in (*NO_NAME, *LONG_NAMES)],
    "partitions": [(name,) for name in (*NO_ID, None)],
    "release_key": NO_KEY,
    "key_text": [*NO_NAME, None],
    "policies": NO_POLICIES,
    "cost": NO_COST,
    "body": NO_BODY,
}

NAMES = list(FIELDS)
TEXTS = {*FIELDS} - {"enclosing_runs", "partitions", "policies", "cost", "body"}

TALLIES: list[Any] = [
    *("", " ", "null", "5", "true", "{}", '""', '"12"', "[1.0]", "[-1]", "[true]"),
    *("[NaN]", "[Infinity]", "[-Infinity]", '["1"]', "[null]", "[[1]]", "[1e3]"),
    *(
        "[1,]",
        "[1",
        "1]",
        "[1 2]",
        "[0x1]",
        "[01]",
        "\0",
        "[1]\0",
        "\ud800",
        "[\ud800]",
    ),
    *('{"1":2}', "[{}]", "[1,-1]", "[1,false]", "[1,2.5]", "[1]]", "nan", "[--1]"),
    *("[" * LONG, "[" + "9" * 5000 + "]", None, 5, 0.5, [1], b"[-1]", {}, object()),
]
VECTORS: list[Any] = [True, -1, 1.0, math.nan, "1", None, np.int64(1), 2.0**62, b"1"]


class Fuzz:
    """A stream of bad inputs.

    Args:
        seed: Decides the stream.
        ledger: A ledger on which nothing may change.
    """

    def __init__(self, seed: int, ledger: Ledger) -> None:
        self.chance, self.ledger = Random(seed), ledger
        self.kinds = (self.number, self.number, self.field, self.tally, self.end)

    def one(self) -> tuple[str, object, Callable[[], object]]:
        """Return what kind of input it is, the input, and how to send it."""
        return self.chance.choice(self.kinds)()

    def number(self) -> tuple[str, object, Callable[[], object]]:
        """Spoil a number of a cost."""
        chance = self.chance
        make, zero = chance.choice(COSTS)
        fate = chance.random()
        value: Any
        if fate < 0.5:
            value = chance.choice(NUMBERS)
        elif fate < 0.501:
            value = chance.choice(LONG_NUMBERS)
        elif fate < 0.6 and zero:
            value = chance.choice(ZEROS)
        elif fate < 0.8:
            value = -chance.random() * 10.0 ** chance.randrange(-300, 300)
            value = value if value < 0 else -1.0
        else:
            value = self.garbage()
        return "number", value, lambda: make(value)

    def field(self) -> tuple[str, object, Callable[[], object]]:
        """Spoil a field of a request."""
        name = self.chance.choice(NAMES)
        value = self.chance.choice(FIELDS[name])
        fate = self.chance.random()
        if name in {"reservation", "owner"} and fate < 0.5:
            value = self.garbage()
        elif (
            name not in {"enclosing_runs", "policies", "cost", "body"} and fate > 0.999
        ):
            # A megabyte of text for people is allowed, if it is text.
            value = self.chance.choice(LONG_TEXTS[name == "key_text" :])
        return name, value, lambda: Request(**{**GOOD, name: value})

    def tally(self) -> tuple[str, object, Callable[[], object]]:
        """Spoil a tally, as a text or as a vector."""
        if self.chance.random() < 0.3:
            values = [self.chance.randrange(5), self.chance.choice(VECTORS)]
            self.chance.shuffle(values)
            return "vector", values, lambda: Tally(tuple(values))
        text = self.chance.choice(TALLIES[:-9])
        if self.chance.random() < 0.001:
            text = self.chance.choice(TALLIES)
        elif self.chance.random() < 0.4:
            text = self.garbage()
        return "tally", text, lambda: Tally.from_text(text)

    def end(self) -> tuple[str, object, Callable[[], object]]:
        """End a charge that is none, now and then; it takes a transaction."""
        if self.chance.random() < 0.98:
            return self.field()
        name = self.chance.choice(NO_NAME[-5:]) if self.chance.random() < 0.5 else "x"
        ledger = self.ledger
        return self.chance.choice(
            [
                ("end", name, lambda: ledger.settle(name)),
                ("end", name, lambda: ledger.void(name, reason="test")),
                ("end", name, lambda: ledger.forfeit(name, reason="test")),
            ]
        )

    def garbage(self) -> str:
        """Return some characters that are no number, no id and no list."""
        pool = "+-.,;[]{}()eE_ xyz\t\0\ud800\u00e9\u2028\U0001f600'\"\\"
        return "".join(self.chance.choices(pool, k=self.chance.randrange(1, 12))) + "?"
