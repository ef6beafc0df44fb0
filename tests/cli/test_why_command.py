"""`dpflow why`: sums by flow, step or week, and refusals with what would fit."""

from __future__ import annotations

import pytest

from dpflow import Gaussian
from tests.cli.support import CDNOW, Shop, run_json

pytestmark = pytest.mark.quick

TOO_MUCH = Gaussian(sensitivity=100, noise_multiplier="0.1")


def test_refusals_of_each_gate_are_counted_once(shop: Shop) -> None:
    """By the dataset, a share, or an odometer, which journals others' refusals too."""
    flows = "  plain: {}\n  halting: {halt_at_epsilon: 1.5}\n  weekly-report"
    shop.write(CDNOW.replace("  weekly-report", flows))
    shop.refuse(TOO_MUCH, flow="plain")
    shop.refuse(Gaussian(sensitivity=1, noise_multiplier=2))
    for _ in range(2):
        shop.refuse(Gaussian(sensitivity=1, noise_multiplier=3), flow="halting")
    found = run_json("why", "cdnow")["refused"]
    times = [(each["newest"]["account"], each["times"]) for each in found]
    assert sorted(times) == [
        ("cdnow#1", 1),
        ("cdnow#1/flow/weekly-report", 1),
        ("cdnow#1/odometer/halting", 2),
    ]
