"""Accounts in words: spent is never shown smaller than it is, left never larger."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpflow.ledger.views.words import amounts_text
from dpflow.show.sheets import reading_text, telling
from tests.projects import POLICY

pytestmark = pytest.mark.quick

ODOMETER = POLICY.replace("{epsilon: 1}", "{epsilon: 1, delta: 1e-6}") + (
    "odometer: {theorem: rdp, delta: 1e-6}\n"
    "flows: {report: {epsilon: 0.5, halt_at_epsilon: 2.5}}\n"
)


@given(st.fractions(min_value=0, max_value=10**6, max_denominator=10**12))
def test_spent_is_rounded_up_and_left_is_rounded_down(value):
    """Whatever the number is."""
    text = f"{value.numerator}/{value.denominator}"
    for up in (True, False):
        shown = amounts_text({"epsilon": text}, up=up).removeprefix("epsilon ")
        assert (Fraction(shown) >= value) if up else (Fraction(shown) <= value)


def reading(value, halt="2.5", *, charged=True):
    """Return the part of a view that a reading is made of."""
    return SimpleNamespace(
        reading=value, delta="0.000001", halt_at=halt, charged=charged
    )


@given(st.floats(min_value=0, max_value=1e6, allow_nan=False))
def test_no_reading_is_shown_smaller_than_it_is(value):
    """Whatever the reading is."""
    shown = reading_text(reading(value)).split()[1]
    assert Fraction(shown) >= Fraction(value)


def view(name, *, used=0.0, kind="partition"):
    """Return an account of a part, or of the whole."""
    place = f"shop#1/partition/{name}" if kind == "partition" else "shop#1"
    gate = SimpleNamespace(partition=name)
    return SimpleNamespace(id=place, name=name, used_fraction=used, gate=gate)


def test_of_many_parts_the_fullest_and_the_newest_tell_most():
    """What belongs to no part is always there, and few accounts all are."""
    parts = [view(f"2026-W{n:02}", used=0.9 if n == 3 else 0.1) for n in range(1, 40)]
    views = [view("", kind="dataset"), *parts]
    shown = [each.name for each in telling(views, 5)]
    assert shown == ["", "2026-W01", "2026-W03", "2026-W38", "2026-W39"]
    assert telling(views, 40) == views
    assert telling(views[:1], 0) == views[:1]
