"""What error is asked for, when a number shows that it is met, and what comes back."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import pytest

from dpflow.exceptions import InvalidCost
from dpflow.noise.accuracy import StoppingRule, Target

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("within", "size", "relative"),
    [("10%", Fraction(1, 10), True), (25, Fraction(25), False), ("2.5", 2.5, False)],
)
def test_a_share_or_a_distance_is_read(within, size, relative):
    """At 95 % where nothing else is said."""
    assert Target.read(within) == Target(size, relative, Fraction(95, 100))
    assert Target.read(within, 0.9) == Target.read(within, "90%")


def test_no_distance_and_no_confidence_is_refused() -> None:
    """Nothing is guessed; a confidence lies between a half and one, 95 is not 95 %."""
    for within in ("%", "10 percent", 0, -1, "nan", None, True, "1e99"):
        with pytest.raises(InvalidCost):
            Target.read(within)  # type: ignore[arg-type]
    for confidence in (0, "10%", 1, "100%", 95, "sure"):
        with pytest.raises(InvalidCost):
            Target.read("10%", confidence)  # type: ignore[arg-type]


def test_refining_ends_at_the_first_number_that_shows_it() -> None:
    """And asks for no number behind it; the last stands where none shows it."""
    rule = StoppingRule(Target.read("10%"), (30.0, 20.0, 10.0))
    asked = []

    def numbers(*values: float) -> Iterator[float]:
        for value in values:
            asked.append(value)
            yield value

    draws, found = rule.refine(numbers(250.0, 210.0, 190.0))
    assert (draws, float(found), asked) == (2, 210.0, [250.0, 210.0])
    assert found.interval == pytest.approx((190, 230))
    draws, found = rule.refine(numbers(-50.0, 60.0, -70.0))
    assert (draws, float(found)) == (3, -70.0)
