"""What the head and the tables of a page say of guarantees, halts and refusals."""

from __future__ import annotations

import pytest

from dpflow import Gaussian, guarded, release
from dpflow.exceptions import BudgetExhausted
from dpflow.guard.project import current_project
from dpflow.ledger.records import TermView
from dpflow.ledger.views import refusals
from dpflow.show.page.facts import headline
from dpflow.show.page.render import render
from tests.projects import make_project
from tests.show.page.pages import Tree, report


def term(number, **fields):
    """Return a charged term."""
    given = {
        "number": number,
        "unit": "customer",
        "relation": "add-or-remove",
        "opened": {"epsilon": "3", "delta": "0.000001"},
        "budget": {"epsilon": "3", "delta": "0.000001"},
        "charged": True,
        "lifetime": None,
        "reason": "",
        "opened_at": "",
        "opened_by": "",
    }
    return TermView(**{**given, **fields})


PINNED = {
    "unit": "customer",
    "relation": "add-or-remove",
    "budget": {"epsilon": "2", "delta": "0.000001"},
}
BY_WEEK = {**PINNED, "unit": "customer-week", "partition": {"by": "week"}}
EIGHT = {"epsilon": "8", "delta": "0.00001"}


@pytest.mark.parametrize(
    ("pinned", "terms", "said"),
    [
        (
            PINNED,
            [],
            "Every customer, over all reports of this term: epsilon at most 2, ",
        ),
        # A term that was tightened counts as it was opened.
        (
            PINNED,
            [term(1)],
            "Every customer, over all reports of this term: epsilon at most 3, ",
        ),
        (
            {**PINNED, "lifetime": EIGHT},
            [term(1), term(2)],
            "Every customer, over all reports of all terms: epsilon at most 8, ",
        ),
        (BY_WEEK, [], "Every customer-week, in each week: epsilon at most 2, "),
    ],
)
def test_the_headline_says_what_is_guaranteed(pinned, terms, said):
    """In one sentence, never less than the terms allow."""
    assert headline(pinned, terms).startswith(said)


@pytest.mark.parametrize("other", [{"unit": "visit"}, {"relation": "replace-one"}])
def test_terms_of_different_promises_have_no_headline(other):
    """Their sum guarantees neither."""
    assert headline({**PINNED, "lifetime": EIGHT}, [term(1, **other), term(2)]) == ""
    uncharged = term(1, **other, charged=False)
    assert headline({**PINNED, "lifetime": EIGHT}, [uncharged, term(2)]) != ""


GATED = """\
dataset: shop
unit: customer
relation: add-or-remove
budget: {epsilon: 1, delta: 1e-6}
filter: gdp
odometer: {theorem: rdp, delta: 1e-6}
flows:
  weekly: {halt_at_epsilon: 0.8}
"""


def halted_project(folder, monkeypatch):
    """Let an odometer refuse a flow twice while the dataset has most of its budget."""
    make_project(folder, monkeypatch, GATED)
    cost = Gaussian(sensitivity=1, sigma=30)
    count = guarded(dataset="shop", cost=cost, flow="weekly", name="count", fresh=True)(
        lambda: release(4000)
    )
    refused = 0
    while refused < 2:
        try:
            count()
        except BudgetExhausted:
            refused += 1


def test_a_halt_is_seen_everywhere(tmp_path, monkeypatch):
    """The page, the picture and `why` say by which gate, and count the same."""
    halted_project(tmp_path, monkeypatch)
    made = report()
    (section,) = made.sections
    assert section.overview.state.text == "halted by the odometer of weekly"
    assert section.refused == 2
    assert "2 refusals" in section.burn_down.sentence()
    assert len(refusals(current_project().ledger, dataset="shop")) == 2
    titles = [title for title, _ in section.burn_down.lines]
    assert titles == ["dataset shop", "odometer of weekly, halts at 0.8"]
    refused = [point for point in section.burn_down.points if point.kind == "refuse"]
    assert len(refused) == 2
    tree = Tree(render(made))
    said = " ".join(each for _, each in tree.text)
    assert "Halted by the odometer of weekly since" in said
    assert "weekly: halted by its odometer" in said
    # A bar is red from its first per mille on where nothing runs.
    (meter,) = tree.all("meter")
    assert float(meter["high"]) < 0.001 < float(meter["value"]) < 0.95
