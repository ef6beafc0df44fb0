"""`dpflow demo` from an empty folder, at a smaller budget, twice."""

from __future__ import annotations

import json
import re
import shutil

import pytest

from dpflow.config import settings
from dpflow.ledger import open_ledger
from dpflow.ledger.views import accounts
from tests.pages import run_forked
from tests.projects import ROOT


@pytest.fixture(scope="module")
def demo(forked):
    """Return a function that runs the demo as a user would."""

    def run(folder, *words):
        return run_forked(
            forked, folder, "-m", "dpflow", "demo", *words, NO_COLOR="1", COLUMNS="100"
        )

    return run


def used(folder):
    """Return what the demo's ledger says of each account."""
    found = settings(folder)
    ledger = open_ledger(found.ledger_url, policies=found.policies)
    views = accounts(ledger, "cdnow")
    ledger.close()
    return views


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a project with the examples and a budget of three weeks."""
    folder = tmp_path_factory.mktemp("demo")
    (folder / "pyproject.toml").touch()
    ignored = shutil.ignore_patterns("__pycache__", "ledger.lock")
    for name in ("flows", "policies"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    policy = folder / "policies" / "cdnow.yaml"
    text = policy.read_text("utf-8")
    small = "budget: {epsilon: 0.85, delta: 1e-6}"
    text = re.sub(r"^budget: .*$", small, text, count=1, flags=re.MULTILINE)
    policy.write_text(text, "utf-8")
    return folder


@pytest.mark.slow
def test_the_demo_shows_everything_and_again_spends_nothing(folder, demo):
    """Guarantee, typo, forfeit, values, halt; the second run charges nothing."""
    first = demo(folder)
    assert first.returncode == 0, first.stderr
    text = " ".join(re.sub(r"[│╭╮╰╯─┃]", " ", first.stdout).split())
    for shown in (
        "Every customer (add-or-remove)",
        "epsilon = 0.85, delta = 1e-06",
        "if every declared sensitivity is right",
        "A mistyped sigma is refused, uncharged",
        "forfeited mu_squared 0.002268",
        "(true: ",
        "Week 1997-W04 was refused",
        "It needs mu_squared",
        "Remaining: mu_squared",
        "3 weeks were published",
    ):
        assert shown in text, shown
    assert (folder / "reports" / "burn-down.png").is_file()

    before = used(folder)
    second = demo(folder, "--json")
    assert second.returncode == 0, second.stderr
    data = json.loads(second.stdout)
    assert data["published"] == ["1997-W01", "1997-W02", "1997-W03"]
    assert data["halted"] == "1997-W04"
    assert "It needs mu_squared" in data["refusal"]
    assert data["forfeited"] == "mu_squared 0.002268"
    assert used(folder) == before
