"""The table of costs and theorems says what the code does, and why."""

from __future__ import annotations

import pytest

from docs._site.prices import EXAMPLES, coverage, prices_page
from dpflow.accounting import FILTERS, ODOMETERS
from dpflow.accounting.costs.base import _KINDS


@pytest.fixture(scope="module")
def rows():
    """Every row, made once."""
    return coverage()


def test_every_pair_has_one_row_with_a_reason(rows):
    """No theorem and no kind of cost is missing."""
    assert len(rows) == (len(FILTERS) + len(ODOMETERS)) * len(EXAMPLES)
    assert len({(r.kind, r.theorem, r.example) for r in rows}) == len(rows)
    kinds = {
        name for name, kind in _KINDS.items() if kind.__module__.startswith("dpflow.")
    }
    assert kinds == {cost.mechanism for cost in EXAMPLES}
    assert [row for row in rows if len(row.reason) < 10] == []


#: What a soundness trap would price.
REFUSED = [
    ("filter", "gdp", "DiscreteGaussian"),
    ("filter", "gdp", "PoissonSampledGaussian"),
    ("filter", "gdp", "ZCDP"),
    ("filter", "zcdp", "PoissonSampledGaussian"),
    ("filter", "zcdp", "RenyiDP"),
    ("filter", "individual", "ApproxDP"),
    ("filter", "basic", "Gaussian"),
    *[("odometer", name, "ApproxDP") for name in ODOMETERS],
    *[("odometer", name, "ApproxZCDP") for name in ODOMETERS],
]


def test_traps_are_refused(rows):
    """No theorem prices what it cannot prove."""
    for cell in REFUSED:
        found = [r for r in rows if (r.kind, r.theorem, r.mechanism) == cell]
        assert [row.priced for row in found] == [False]


def test_the_page_of_prices_is_what_the_code_does(rows):
    """Each cost has a section with the rules that price it, and with no other."""
    sections = prices_page(rows).split("\n## ")[1:]
    assert len(sections) == len(EXAMPLES)
    for cost, text in zip(EXAMPLES, sections, strict=True):
        found = {row for row in rows if row.example == repr(cost)}
        for row in found:
            column = 1 if row.kind == "filter" else 2
            cells = [line.split("|")[column] for line in text.splitlines()[4:]]
            assert any(f"`{row.theorem}`" in cell for cell in cells) == row.priced
