"""A cost on a command line is the cost that Python would make of it, and never code."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpflow import ZCDP, Gaussian, PureDP
from dpflow.accounting.costs.text import cost_from_text
from dpflow.exceptions import InvalidCost

pytestmark = pytest.mark.quick


def test_numbers_are_read_as_they_are_written():
    """A float would round the digits away; text stands for a number, too."""
    text = "PureDP(epsilon=0.1234567890123456789012345678901)"
    exact = Fraction("0.1234567890123456789012345678901")
    assert cost_from_text(text) == PureDP(epsilon=exact)
    assert cost_from_text("ZCDP(rho=1e-20)") == ZCDP(rho="1e-20")
    text = "Gaussian(sensitivity='100', noise_multiplier=20)"
    assert cost_from_text(f"  {text}\n") == Gaussian(sensitivity=100, sigma=2000)


#: No cost, a number that is none, code, or a form that no cost has.
REFUSED = """
1|Gaussian|Gaussian()|Gaussian(1, 20)|Gaussian(sensitivity=1, sigma=-20)|
Gaussian(sensitivity=1, sigma=nan)|Gaussian(sensitivity=1, sigma=2 * 10)|
Gaussian(sensitivity=1, sigma=1/0)|Gaussian(sensitivity=1, sigma=20|
Gaussian(sensitivity=1, sigma=20); print(1)|Gaussian(**{'sensitivity': 1, 'sigma': 2})|
Repeated(*[1, 2])|Unheard(epsilon=1)|[PureDP(epsilon=1)]|
PureDP(epsilon=__import__('os').system('true'))|PureDP(epsilon=(lambda: 1)())|
PureDP(epsilon=open('x'))|PureDP.__init__(epsilon=1)|{'mechanism': 'PureDP'}|
{"mechanism": "PureDP"}|{|\0
"""


def test_everything_else_is_refused():
    """With what is wrong, and never run."""
    long = "PureDP(epsilon=" + "9" * 30_000 + ")"
    for text in [*map(str.strip, REFUSED.split("|")), "", "(" * 2000, long]:
        with pytest.raises(InvalidCost) as caught:
            cost_from_text(text)
        assert caught.value.message


@given(st.text(max_size=60))
def test_any_text_is_a_cost_or_refused(text):
    """Nothing else is ever raised."""
    try:
        cost_from_text(text)
    except InvalidCost:
        return
    pytest.fail(f"{text!r} was read as a cost")
