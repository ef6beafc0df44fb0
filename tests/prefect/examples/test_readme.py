"""What the README shows is what happens."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from dpflow import Gaussian
from dpflow.accounting import make_filter
from dpflow.accounting.rules.tally import Tally
from dpflow.cli import main
from dpflow.guard.project import current_project, forget_projects
from dpflow.ledger.views import accounts

ROOT = Path(__file__).resolve().parents[3]
README = (ROOT / "README.md").read_text("utf-8")


def blocks(language):
    """Return the README's code blocks in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return an empty project folder."""
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "policies").mkdir()
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    forget_projects()


def dpflow(monkeypatch, *arguments):
    """Run the command line in this process."""
    monkeypatch.setattr("sys.argv", ["dpflow", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code or 0


def test_the_example_runs_and_again_spends_nothing(folder, monkeypatch, capsys):
    """Policy, `dpflow ledger init` and report.py as they stand in the README."""
    (policy,) = blocks("yaml")
    (folder / "policies" / "visits.yaml").write_text(policy, "utf-8")
    (folder / "report.py").write_text(blocks("python")[0], "utf-8")
    assert dpflow(monkeypatch, "ledger", "init") == 0
    assert dpflow(monkeypatch, "policy", "check") == 0
    runpy.run_path("report.py", run_name="__main__")
    runpy.run_path("report.py", run_name="__main__")
    printed = re.findall(r"monday: (-?\d+) visitors", capsys.readouterr().out)
    assert len(printed) == 2
    assert printed[0] == printed[1]
    views = accounts(current_project().ledger, "visits")
    (dataset,) = [view for view in views if view.kind == "dataset"]
    assert dict(dataset.spent) == {"mu_squared": "0.0025"}


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


@pytest.mark.parametrize("theorem", ["gdp", "auto", "zcdp", "rdp"])
def test_the_table_of_filters_is_true(theorem):
    """The admitted steps of the table are what the filters admit."""
    (row,) = [
        line
        for line in README.splitlines()
        if line.startswith("| `") and f"`{theorem}`" in line.split("|")[1]
    ]
    numbers = [int(text) for text in row.split("|")[3].split("/")]
    assert numbers == [admitted(theorem, 1), admitted(theorem, 5)]
