"""A step that reports how it came out is never charged more than was reserved."""

from __future__ import annotations

from fractions import Fraction

import pytest

from dpflow import EarlyStopping, OutputDP, PureDP
from dpflow.accounting.rules.tally import Tally
from dpflow.ledger.decision.gates import Gate
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.views.accounts import accounts
from tests.ledger.support import UNIT, Place, granted, make_policy, sums

LOOP = EarlyStopping(PureDP(epsilon="0.05"), stops=(2, 4))


def test_a_report_charges_at_most_what_was_reserved(
    ledger: Ledger, path: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What did not run returns; a price above what was held posts what was held."""
    ledger.settle(granted(ledger, LOOP), reported=2)
    assert sums(path) == (Fraction(1, 10), 0)
    for held, more in enumerate([Tally((UNIT // 2, 0)), Tally((0, 1))], start=1):
        charge = granted(ledger, LOOP)
        with monkeypatch.context() as patch:
            patch.setattr(Gate, "price", lambda *_, more=more: more)
            ledger.settle(charge, reported=2)
        # No component of another price is mixed into that of the reservation.
        assert sums(path) == (Fraction(1 + 2 * held, 10), 0)


def test_a_group_of_units_gives_nothing_back(ledger: Ledger) -> None:
    """A person in two weeks was reserved for twice; one week's price is too little."""
    capped = make_policy(
        unit="user-week",
        partition="{by: week}",
        lifetime="{epsilon: 2}",
        filter="output-dp",
    )
    weeks = ("2026-W05", "2026-W06")
    cells = OutputDP({"none": "0.1", "answer": "0.2"})
    charge = granted(ledger, cells, policies=(capped,), partitions=weeks)
    ledger.settle(charge, reported="none")
    found = {view.kind: view.spent["epsilon"] for view in accounts(ledger)}
    assert found == {"dataset": "0.4", "partition": "0.1"}
