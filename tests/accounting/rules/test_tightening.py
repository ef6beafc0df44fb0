"""A filter made smaller under its tally admits nothing that the old one did not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpflow import Gaussian, PureDP
from dpflow.accounting import make_filter
from dpflow.accounting.rules.tightening import admits_less, tightened_filter
from dpflow.exceptions import InvalidCost

OPTIONS = [
    ("basic", {}),
    ("output-dp", {}),
    ("gdp", {}),
    ("zcdp", {}),
    ("zcdp", {"delta_loss": "5e-7"}),
    ("whitehouse", {}),
    ("rdp", {}),
    ("rdp", {"orders": ["2", "8", "32"]}),
    ("individual", {}),
    ("auto", {}),
]


def made(theorem: str, options: dict, epsilon: str = "3", delta: str = "1e-6"):
    """Make a filter with a usual budget."""
    return make_filter(theorem, epsilon=epsilon, delta=delta, **options)


@pytest.mark.parametrize(("theorem", "options"), OPTIONS)
def test_a_lower_budget_keeps_the_price_of_a_step(theorem, options):
    """Tallies go on; the derived order is not tuned again."""
    before = made(theorem, options)
    for epsilon, delta in (("2.5", "0.000001"), ("3", "9e-7"), ("2", "8e-7")):
        after = tightened_filter(before.parameters(), epsilon=epsilon, delta=delta)
        assert admits_less(after, before)
        assert not admits_less(before, after)
        assert after.parameters()["epsilon"] == epsilon
        assert after.components == before.components
        assert make_filter(**after.parameters()) == after
        if theorem != "individual":  # it prices its own bound only
            then, now = (rule.price(PureDP(epsilon="0.1")) for rule in (before, after))
            # Where less remains, a step may take more of it.
            assert then == now if before.steady else then.fits_within(now)


@given(
    st.sampled_from([form for form in OPTIONS if form[0] != "individual"]),
    st.integers(1, 100),
    st.integers(1, 100),
    st.lists(st.tuples(st.integers(2, 40), st.integers(1, 60)), max_size=6),
)
def test_a_smaller_filter_admits_no_more(form, epsilon, delta, steps):
    """Any charges, in any mixture."""
    theorem, options = form
    before = made(theorem, options)
    try:
        after = tightened_filter(
            before.parameters(), epsilon=f"{3 * epsilon / 100:.2f}", delta=f"{delta}e-8"
        )
    except InvalidCost:
        return
    cost = PureDP(epsilon="0.01")
    if theorem not in ("basic", "output-dp"):
        cost = Gaussian(sensitivity=1, noise_multiplier=40)
    total = before.zero()
    for factor, times in steps:
        total = total + before.price(cost.noisier(factor)).times(times)
    assert before.admits(total) or not after.admits(total)


def test_an_impossible_budget_is_refused() -> None:
    """The error names the budget and says why it is not possible."""
    for theorem, words in (
        ("rogers", "there is no proof that the rogers filter admits less"),
        ("rdp", "order 9 allows nothing at epsilon 0.1"),
        ("auto", "orders 8, 10 allow nothing"),
    ):
        with pytest.raises(InvalidCost, match=words) as caught:
            tightened_filter(
                made(theorem, {}).parameters(), epsilon="0.1", delta="0.000001"
            )
        text = "cannot be lowered to (epsilon 0.1, delta 0.000001)"
        assert text in str(caught.value)


def test_filters_that_admit_more_or_count_otherwise_are_refused() -> None:
    """A larger budget, another theorem, order, weight or tuned member."""
    basic, orders = made("basic", {}), {"orders": ["2", "32"]}
    weights = [{**orders, "weights": [a, b]} for a, b in ((".5", ".5"), (".9", ".1"))]
    for before, after in (
        (basic, made("basic", {}, "4")),
        (basic, made("basic", {}, "2", "2e-6")),
        (basic, made("output-dp", {}, "2")),
        (made("rdp", {"order": 9}), made("rdp", {"order": 10}, "2")),
        (made("rdp", orders), made("rdp", {"orders": ["2", "33"]}, "2")),
        (made("rdp", weights[0]), made("rdp", weights[1], "2")),
        (made("auto", {}), made("auto", {}, "2")),
        (made("whitehouse", {}), made("whitehouse", {"drift": "tanh"}, "2")),
    ):
        assert not admits_less(after, before)
