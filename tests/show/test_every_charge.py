"""Every view of a ledger, after every kind of charge, under every filter."""

from __future__ import annotations

import contextlib
import signal
from fractions import Fraction
from pathlib import Path

import pytest

import dpflow
from dpflow import spend
from dpflow.accounting import FILTERS, make_filter
from dpflow.accounting.costs.base import Cost
from dpflow.accounting.costs.text import cost_from_text
from dpflow.exceptions import BudgetRefused, UnsupportedCost
from dpflow.forecast.theorems import epsilon_used
from dpflow.guard.project import current_project, forget_projects
from dpflow.prefect import artifacts
from dpflow.show.gauges import prometheus
from tests.cli.support import run
from tests.ledger.processes import Child, die
from tests.projects import make_project
from tests.sizes import SCALE
from tests.tables import read_tables

ROWS = read_tables(__file__)
#: Costs by dataset, with an outcome; some use more of delta than of epsilon.
CHARGES: dict[str, tuple[Cost, int | str | None]] = {
    name: (cost_from_text(text), outcome)
    for name, (text, outcome) in ROWS["charges"].items()
}
#: What happens to a dataset besides: by hand, by a lost process, by an edit.
EVENTS = ("prior", "forfeit", "frozen", "tightened")
PURE, APPROX = CHARGES["pure"][0], CHARGES["half"][0]
THEOREMS: dict[str, str] = {name: name for name in FILTERS} | ROWS["filters"]


def policy(dataset: str, theorem: str, epsilon: int = 3) -> str:
    """Return a policy whose delta is small."""
    return (
        f"dataset: {dataset}\nunit: customer\nrelation: add-or-remove\n"
        f"budget: {{epsilon: {epsilon}, delta: 1e-6}}\nfilter: {THEOREMS[theorem]}\n"
    )


def charged(dataset: str, cost: Cost, outcome: int | str | None = None) -> None:
    """Run a step; some filters have no price for its cost, or no room."""
    with (
        contextlib.suppress(UnsupportedCost, BudgetRefused),
        spend(dataset=dataset, cost=cost, step="s", flow="f", noise="own") as step,
    ):
        if outcome is not None:
            step.report(outcome)


def reserve_and_die(_: object) -> None:
    """Begin a step and end without a word; some filters have no price for its cost."""
    with (
        contextlib.suppress(UnsupportedCost),
        spend(dataset="forfeit", cost=PURE, step="s", noise="own"),
    ):
        die()


def looked_at(command: str, *, refusable: bool = False) -> None:
    """Run a command that ends with an answer, or with a sentence of dpflow."""
    result = run(*command.split())
    assert isinstance(result.exception, SystemExit | None), command
    assert result.exit_code == 0 or refusable, (command, result.output)


@pytest.mark.parametrize("theorem", ["basic", "output-dp", "rogers", "auto"])
@pytest.mark.parametrize("share", ["0.01", "0.05", "0.5", "0.99", "0.9999", "1"])
def test_the_least_budget_at_a_delta_is_what_epsilon_needs(
    theorem: str, share: str
) -> None:
    """However much of delta is used; nothing lies below it by more than a percent."""
    budget = {"epsilon": Fraction(3), "delta": Fraction(1, 10**6)}
    rule = make_filter(theorem, **budget)
    delta = Fraction(share) * budget["delta"]
    if theorem in ("rogers", "auto"):
        delta /= 20
    used = rule.price(dpflow.ApproxDP(epsilon="0.1", delta=delta))
    least = epsilon_used(rule, used)
    assert least is not None
    if theorem != "rogers":
        assert Fraction("0.1") <= least <= Fraction("0.102")
    if theorem != "auto":
        less = {**rule.parameters(), "epsilon": least * Fraction(98, 100)}
        assert not make_filter(**less).admits(used)


@pytest.mark.parametrize("theorem", THEOREMS)
def test_no_view_ends_in_an_exception(
    theorem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What history can read, status and the report can, in each form.

    Under each filter an eighth of the costs is charged; all of them in the campaign.
    """
    parts, part = (1, 0) if SCALE > 1 else (8, [*THEOREMS].index(theorem) % 8)
    charges = [*dict.fromkeys([*[*CHARGES][part::parts], "half"])]
    datasets = [*charges, *EVENTS]
    make_project(tmp_path, monkeypatch, *(policy(d, theorem) for d in datasets))
    for dataset in charges:
        charged(dataset, *CHARGES[dataset])
    for cost in ("PureDP(epsilon=0.1)", "ApproxDP(epsilon=0.1, delta=5e-7)"):
        run("ledger", "charge", "prior", "--cost", cost, "--reason", "r")
    forget_projects()
    code, lines = Child(reserve_and_die).end()
    assert code in {-signal.SIGKILL, 0}, lines
    for dataset in ("frozen", "tightened"):
        charged(dataset, PURE)
        charged(dataset, APPROX)
    run("freeze", "frozen", "--reason", "r")
    path = tmp_path / "policies" / f"{datasets.index('tightened')}.yaml"
    path.write_text(policy("tightened", theorem, epsilon=2), "utf-8")
    run("policy", "apply", "tightened", "--reason", "r")

    for command in ROWS["answers"]:
        looked_at(command)
    for command in ROWS["answers or refusals"]:
        looked_at(command, refusable=True)
    for dataset in [*charges, *EVENTS[part::parts]]:
        looked_at(f"why {dataset}")
        looked_at(f"forecast {dataset} --cost PureDP(epsilon=0.1)", refusable=True)
    record = dpflow.status()
    assert len(record.datasets) == len(datasets)
    assert prometheus(record)
    texts: list[object] = []
    monkeypatch.setattr(artifacts, "ask_briefly", lambda *_, **f: texts.append(f))
    for known in record.datasets:
        artifacts._publish(current_project(), known, None, ())
    assert len(texts) >= len(datasets)
