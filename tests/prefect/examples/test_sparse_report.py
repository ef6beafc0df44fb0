"""The sparse report on real weeks, and Figure 1 against exact numbers."""

from __future__ import annotations

from fractions import Fraction

import pytest

from dpflow.guard.project import current_project
from dpflow.ledger.views import accounts, history
from dpflow.rounding import number_from_text
from flows import data, sparse_report

#: Expected deviations by quadrature, computed apart from this project.
EXPECTED = {0: 0.2619, 1: 1.778094, 5: 8.669876, 10: 19.733073, 20: 56.408513}


def test_figure_1_has_the_exact_expectations() -> None:
    """At the split 1 : 40^(2/3) of the paper."""
    cost = sparse_report.FIGURE
    assert float(cost.threshold_scale) == pytest.approx(25.392141905702925, rel=1e-9)
    assert float(cost.answer_scale) == pytest.approx(86.8399037867068, rel=1e-9)
    for large, expected in EXPECTED.items():
        assert sparse_report.expected_deviation(large) == pytest.approx(
            expected, abs=2e-6
        )


def test_busy_weeks_cost_their_cell_and_the_rest_pays_for_counts(examples) -> None:
    """The whole budget is spent, to the ninth place; a second run spends nothing."""
    report = sparse_report.sparse_report()
    weeks = data.weeks()
    # 13 weeks lie far above 1000, and the first ones did: their noise has scale 45.
    assert 5 <= len(report) <= 20
    assert set(report) <= set(weeks)
    (view,) = accounts(current_project().ledger, "cdnow-weeks")[:1]
    spent = number_from_text(view.spent["epsilon"])
    assert 1 - Fraction(1, 10**9) < spent <= 1
    before = len(history(current_project().ledger, limit=1000))
    assert sparse_report.sparse_report() == report
    assert len(history(current_project().ledger, limit=1000)) == before
