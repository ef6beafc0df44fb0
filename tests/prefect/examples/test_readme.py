"""What the README shows is what happens."""

from __future__ import annotations

from dpflow import Gaussian
from dpflow.accounting import make_filter
from dpflow.accounting.rules.tally import Tally
from tests.pages import run_page
from tests.projects import ROOT

README = (ROOT / "README.md").read_text("utf-8")
AGAIN = """
```console
$ python report.py > once && python report.py > again
$ diff <(grep -o "monday.*" once) <(grep -o "monday.*" again)
$ dpflow status visits --details
... mu_squared 0.0025 ...
```
"""


def test_the_example_runs_and_again_spends_nothing(tmp_path, forked):
    """Policy, `dpflow ledger init` and report.py as they stand in the README."""
    assert run_page(README + AGAIN, tmp_path, **forked) == 7


def admitted(theorem, epsilon):
    """Count the sigma 20 Gaussians that a filter admits, by bisection."""
    rule = make_filter(theorem, epsilon=epsilon, delta="1e-6")
    price = rule.price(Gaussian(sensitivity=1, sigma=20)).amounts
    low, high = 0, 1000
    while high - low > 1:
        middle = (low + high) // 2
        fits = rule.admits(Tally(tuple(middle * amount for amount in price)))
        low, high = (middle, high) if fits else (low, middle)
    return low


def test_the_table_of_filters_is_true():
    """The admitted steps of the table are what the filters admit."""
    lines = [line for line in README.splitlines() if line.startswith("| `")]
    for theorem in ("gdp", "auto", "zcdp", "rdp"):
        (row,) = [line for line in lines if f"`{theorem}`" in line.split("|")[1]]
        numbers = [int(text) for text in row.split("|")[3].split("/")]
        assert numbers == [admitted(theorem, 1), admitted(theorem, 5)]
