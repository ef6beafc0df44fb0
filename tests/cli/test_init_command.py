"""`dpflow init` makes a project that passes its checks and runs."""

from __future__ import annotations

import ast
from types import SimpleNamespace

import pytest
import yaml
from typer.testing import CliRunner

from dpflow.cli import app
from dpflow.ledger.decisions.terms import view_policy
from dpflow.policy import load_policy
from dpflow.policy.lifetime import terms_that_fit
from dpflow.starter.project import default_delta, filter_for
from tests.cli.support import Shop, run, run_json

pytestmark = pytest.mark.quick


def test_any_unit_is_written_so_that_it_is_read_again(empty: Shop) -> None:
    """YAML would take some words for something else."""
    for number, word in enumerate(["null", "123", "yes", 'it"s', "a: b", "#x", "NAME"]):
        names = ("--dataset", f"d{number}", "--flow", f"f{number}")
        run_json("init", "--yes", *names, "--unit", word)
        policy = yaml.safe_load((empty.policies / f"d{number}.yaml").read_text())
        assert policy["unit"] == word
        ast.parse((empty.root / "flows" / f"f{number}.py").read_text())


def test_a_bad_answer_is_prompted_for_again(empty, monkeypatch):
    """Each answer lands in the policy; `init` prompts again after a refused one."""
    terminal = SimpleNamespace(isatty=lambda: True)
    streams = SimpleNamespace(stdin=terminal, stdout=terminal)
    monkeypatch.setattr("dpflow.cli.init.sys", streams)
    names = ["sales data", "sales", "buyer", "0"]
    answers = [*names, "abc", "2", "5", "1e-7", "4", *[""] * 3, "weekly report"]
    result = CliRunner().invoke(app, ["init"], input="\n".join(answers) + "\n")
    text = result.output.replace("\n", " ")
    assert "dataset 'sales data' is not a usable name" in text
    assert "budget.epsilon must be a finite number, got 'abc'" in text
    assert "budget.delta must lie in [0, 1], got '5'" in text
    policy = yaml.safe_load((empty.policies / "sales.yaml").read_text())
    assert policy["budget"] == {"epsilon": 2, "delta": "1e-7"}
    assert policy["flows"] == {"weekly report": {}}
    assert policy["other_flows"] == "allow"
    assert policy["lifetime"] == {"epsilon": 4.042, "delta": "4e-7"}
    comment = "filter: gdp  # Gaussian, Laplace and pure steps; `auto` for"
    assert comment in (empty.policies / "sales.yaml").read_text()


def test_the_default_delta_is_far_below_one_in_all_people() -> None:
    """At most a tenth of it."""
    assert default_delta(None) == default_delta(23570) == "1e-6"
    for people in (10, 23570, 10**9):
        assert float(default_delta(people)) <= 0.1 / people


def test_three_answers_choose_a_filter() -> None:
    """The reason comes with it."""
    for noise, use, of, delta, theorem in [
        ("gdp", "reports", "rows", "1e-6", "gdp"),
        ("laplace", "reports", "people", "1e-6", "gdp"),
        ("mixed", "reports", "rows", "1e-6", "auto"),
        ("gdp", "training", "rows", "1e-6", "rdp"),
        ("laplace", "reports", "rows", "0", "basic"),
    ]:
        chosen, why = filter_for(noise=noise, use=use, of=of, delta=delta)
        assert chosen == theorem
        assert ("`individual`" in why) is (of == "people")


@pytest.mark.parametrize("theorem", ["gdp", "zcdp", "rdp", "auto", "basic"])
@pytest.mark.parametrize("terms", [1, 4])
def test_the_lifetime_is_the_least_that_admits_the_terms(
    empty: Shop, theorem: str, terms: int
) -> None:
    """In the filter's own composition; with one term it is the budget."""
    run_json("init", "--yes", "--filter", theorem, "--terms", str(terms))
    policy = load_policy(empty.policies / "visits.yaml")
    assert policy.lifetime is not None
    lifetime, term = policy.lifetime.model_dump(), view_policy(policy).counted
    assert (terms > 1) or policy.lifetime == policy.budget
    assert terms_that_fit(term, lifetime) == terms
    less = {**lifetime, "epsilon": str(float(lifetime["epsilon"]) * 0.999)}
    assert terms_that_fit(term, less) == terms - 1
    assert run("policy", "check", "--strict").exit_code == 0
