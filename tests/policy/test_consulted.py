"""No field of a policy is declared in vain.

A new field fails until it has a row with two values and what differs between them.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from dpflow import guarded, release
from dpflow.exceptions import BudgetExhausted
from dpflow.forecast.advice import advice
from dpflow.forecast.check import PolicyCheck
from dpflow.guard.release_keys import Arguments, fill
from dpflow.policy import Policy, parse_policy
from dpflow.policy.fields import OnExhausted
from dpflow.policy.population import Population
from dpflow.prefect import flow
from tests.projects import NOISY, journal, make_project

pytestmark = pytest.mark.quick

BASE = {
    "dataset": "shop",
    "unit": "person",
    "relation": "add-or-remove",
    "budget": "{epsilon: 1, delta: 1e-6}",
    "filter": "gdp",
}
DAYS = {"unit": "person-day", "partition": "{by: day}"}
SHARE = "{epsilon: 1, delta: 1e-7}"
PLAN = "{f: {plan: {runs: 9, steps: {s: %s}}}}"


def policy_of(fields: dict[str, str]) -> Policy:
    """Return the base policy with other fields."""
    given = {**BASE, **fields}
    if "population" in fields and "dataset" not in fields:
        del given["dataset"]
    return parse_policy("\n".join(f"{name}: {text}" for name, text in given.items()))


def pins(fields: dict[str, str]) -> object:
    """Return what the ledger keeps."""
    return policy_of(fields).to_pinned()


def told(fields: dict[str, str]) -> object:
    """Return the warnings of a check, and the texts for the registry."""
    policy = policy_of(fields)
    return [each.line for each in advice(policy)], policy.to_described()


def pinner(fields: dict[str, str]) -> object:
    """Return who pins the first copy, as tests of access try it."""
    standing: Any = SimpleNamespace(term=None, differences=())
    policy = policy_of(fields)
    return PolicyCheck(path=Path(), policy=policy, standing=standing).standing_text


def keys(fields: dict[str, str]) -> object:
    """Return the key of an instant."""
    at = {"at": datetime(2026, 6, 30, 22, 30, tzinfo=UTC)}
    return fill("{at:%d}", Arguments(at, [policy_of(fields).zone]))


def ended(fields: dict[str, str]) -> object:
    """Return whether an exhausted flow goes on, and whether its schedule stops."""
    paused: list[bool] = []
    policy = policy_of(fields)
    name = f"population/{policy.population}" if policy.population else policy.dataset
    refusal = BudgetExhausted("x", dataset=name)
    run = SimpleNamespace(id="r", stopped=False, refusal=lambda: refusal)
    policies = {policy.dataset: policy}
    if policy.population:
        whole = policy.model_copy(update={"dataset": name, "population": None})
        policies[name] = whole.model_copy(update={"on_exhausted": OnExhausted()})
    project = SimpleNamespace(policies=policies)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flow, "current_project", lambda: project)
        patch.setattr(flow, "_pause_schedule", lambda: paused.append(True))
        for ignored in ("publish_budget", "wait_for_steps"):
            patch.setattr(flow, ignored, lambda *_: None)
        return flow._end(run, "value", None) == "value", paused


@pytest.fixture
def ran(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Callable[[dict[str, str]], object]:
    """Return a function that runs a step and one that fails under a policy."""

    def run(fields: dict[str, str]) -> object:
        texts = {**BASE, **fields}.items()
        folder = tmp_path / str(len([*tmp_path.iterdir()]))
        folder.mkdir()
        policy = "\n".join(f"{name}: {text}" for name, text in texts)
        make_project(folder, monkeypatch, policy)
        caplog.clear()

        @guarded(dataset="shop", cost=NOISY)
        def count() -> float:
            return release(1)

        @guarded(dataset="shop", cost=NOISY)
        def fail() -> float:
            raise ValueError

        count()
        with pytest.raises(Exception) as caught:  # noqa: PT011 (either class)
            fail()
        warnings = [r.message for r in caplog.records if r.levelno == logging.WARNING]
        return caught.type, warnings, [e.body.get("versions") for e in journal()]

    return run


Row = tuple[dict[str, str], dict[str, str], Callable[[dict[str, str]], object] | None]
#: Two policies by the field in which they differ, and what shows it; None: a run.
FIELDS: dict[str, Row] = {
    "unit": ({}, {"unit": "visit"}, pins),
    "relation": ({}, {"relation": "replace-one"}, pins),
    "budget.epsilon": ({}, {"budget": "{epsilon: 2, delta: 1e-6}"}, pins),
    "budget.delta": ({}, {"budget": "{epsilon: 1, delta: 1e-7}"}, pins),
    "filter.theorem": ({}, {"filter": "zcdp"}, pins),
    "lifetime.epsilon": (
        {"lifetime": "{epsilon: 2, delta: 1e-6}"},
        {"lifetime": "{epsilon: 3, delta: 1e-6}"},
        pins,
    ),
    "lifetime.delta": (
        {"lifetime": "{epsilon: 2, delta: 1e-6}"},
        {"lifetime": "{epsilon: 2, delta: 1e-5}"},
        pins,
    ),
    "check.people": ({}, {"check": "{people: 100000000}"}, told),
    "about": ({}, {"about": "{name: Visits}"}, told),
    "dataset": ({}, {"dataset": "other"}, pins),
    "odometer.theorem": ({"odometer": "rdp"}, {"odometer": "basic"}, pins),
    "odometer.delta": (
        {"odometer": "rdp"},
        {"odometer": "{theorem: rdp, delta: 1e-7}"},
        pins,
    ),
    "flows.epsilon": (
        {"flows": f"{{f: {SHARE}}}"},
        {"flows": "{f: {epsilon: 0.5, delta: 1e-7}}"},
        pins,
    ),
    "flows.delta": (
        {"flows": f"{{f: {SHARE}}}"},
        {"flows": "{f: {epsilon: 1, delta: 1e-8}}"},
        pins,
    ),
    "flows.halt_at_epsilon": (
        {"odometer": "rdp", "flows": "{f: {halt_at_epsilon: 2}}"},
        {"odometer": "rdp", "flows": "{f: {halt_at_epsilon: 3}}"},
        pins,
    ),
    "flows.reserved": (
        {"flows": "{f: {epsilon: 0.5, delta: 1e-7}}"},
        {"flows": "{f: {epsilon: 0.5, delta: 1e-7, reserved: true}}"},
        pins,
    ),
    "flows.share": (
        {"flows": "{f: {share: 50%}}"},
        {"flows": "{f: {share: 60%}}"},
        pins,
    ),
    "flows.plan.runs": (
        {"flows": PLAN % 1},
        {"flows": PLAN.replace("9", "8") % 1},
        pins,
    ),
    "flows.plan.steps.weight": (
        {"flows": PLAN % "1, t: 1"},
        {"flows": PLAN % "2, t: 1"},
        pins,
    ),
    "flows.plan.steps.mechanism": (
        {"flows": PLAN % "{weight: 1, mechanism: Laplace}"},
        {"flows": PLAN % "{weight: 1, mechanism: Gaussian}"},
        pins,
    ),
    "flows.plan.steps.cost": (
        {"flows": PLAN % '1, t: {cost: "PureDP(epsilon=0.01)"}'},
        {"flows": PLAN % '1, t: {cost: "PureDP(epsilon=0.02)"}'},
        pins,
    ),
    "other_flows": ({}, {"other_flows": "refuse"}, pins),
    "partition.by": (DAYS, {"partition": "{by: region}"}, pins),
    "partition.replace": (
        {"partition": "{by: region}"},
        {"partition": "{by: region, replace: within}"},
        pins,
    ),
    "window.length": (
        {**DAYS, "window": "{length: 7}"},
        {**DAYS, "window": "{length: 8}"},
        pins,
    ),
    "zone": ({}, {"zone": "Europe/Berlin"}, keys),
    "population": ({}, {"dataset": "shop", "population": "people"}, pins),
    "alerts": ({}, {"alerts": "[0.01]"}, None),
    "errors": ({}, {"errors": "keep"}, None),
    "on_exhausted.flow": ({}, {"on_exhausted": "{flow: skip}"}, ended),
    "on_exhausted.schedule": ({}, {"on_exhausted": "{schedule: pause}"}, ended),
    "data_version": ({}, {"data_version": '"2"'}, None),
    "pin": ({}, {"pin": "apply"}, pinner),
    "source": ({}, {"source": "warehouse"}, pins),
}


def fields_of(model: Any, *path: str) -> Iterator[str]:
    """Yield the path of each field, those of fields that are mappings included."""
    for name, field in model.model_fields.items():
        inner = [*models_in(field.annotation)]
        for kind in inner:
            yield from fields_of(kind, *path, name)
        if not inner:
            yield ".".join((*path, name))


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models of an annotation."""
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from models_in(part)


def test_each_field_of_a_policy_has_a_row() -> None:
    """Those of a population are among them."""
    assert {*fields_of(Policy)} == {*FIELDS} >= {*fields_of(Population)}


@pytest.mark.parametrize("name", FIELDS)
def test_each_field_of_a_policy_is_consulted(name: str, ran: Any) -> None:
    """Two values of it show a difference, and one value shows none."""
    before, after, show = FIELDS[name]
    show = show or ran
    assert show(before) == show(before)
    assert show(before) != show(after)


def test_what_members_of_a_population_say_holds_where_it_is_exhausted() -> None:
    """A population's file has no `on_exhausted`."""
    member = {"dataset": "shop", "population": "people"}
    assert ended(member) == (False, [])
    assert ended({**member, "on_exhausted": "{flow: skip}"}) == (True, [])
    paused = ended({**member, "on_exhausted": "{schedule: pause}"})
    assert paused == (False, [True])
