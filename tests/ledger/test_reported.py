"""A step that reports how it came out is never charged more than was reserved."""

from __future__ import annotations

from fractions import Fraction

import pytest

from dpflow.accounting.rules.basic import BasicFilter
from dpflow.accounting.rules.tally import Tally
from tests.ledger.support import UNIT, Place, audit, granted, make_ledger, sums


@pytest.mark.parametrize(("realised", "charged"), [(4, 4), (10, 10), (11, 10)])
def test_a_report_charges_at_most_what_was_reserved(
    path: Place, monkeypatch: pytest.MonkeyPatch, realised: int, charged: int
) -> None:
    """Less is posted as less; a theorem that asks for more gets what was held."""
    ledger = make_ledger(path)
    amount = Tally((realised * UNIT // 100, 0))
    monkeypatch.setattr(BasicFilter, "price_realised", lambda *_: amount)
    ledger.settle(granted(ledger, "0.1"), reported=1)
    assert sums(path) == (Fraction(charged, 100), 0)
    ledger.close()


def test_without_a_report_all_of_it_is_charged(path: Place) -> None:
    """And the journal says so."""
    ledger = make_ledger(path)
    ledger.settle(granted(ledger, "0.1"))
    assert sums(path) == (Fraction(1, 10), 0)
    ledger.close()
    audit(path)
