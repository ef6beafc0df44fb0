"""No field of a policy is declared in vain.

A new field fails until it has a row with two values and what differs between them.
"""

from __future__ import annotations

import inspect
import logging
import re
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
from tests.tables import read_tables

pytestmark = pytest.mark.quick

ROWS = read_tables(__file__)
FIELDS: dict[str, str] = ROWS["fields"]


def text_of(fields: str) -> str:
    """Return the base policy with other fields."""
    given = [line.partition(":")[0] for line in fields.splitlines()]
    base = [
        line
        for line in ROWS["base"].splitlines()
        if line.partition(":")[0] not in given
    ]
    return "\n".join([*base, fields])


def policy_of(fields: str) -> Policy:
    """Return the base policy with other fields."""
    return parse_policy(text_of(fields))


def pins(fields: str) -> object:
    """Return what the ledger keeps."""
    return policy_of(fields).to_pinned()


def told(fields: str) -> object:
    """Return the warnings of a check, and the texts for the registry."""
    policy = policy_of(fields)
    return [each.line for each in advice(policy)], policy.to_described()


def pinner(fields: str) -> object:
    """Return who pins the first copy, as tests of access try it."""
    standing: Any = SimpleNamespace(term=None, differences=())
    policy = policy_of(fields)
    return PolicyCheck(path=Path(), policy=policy, standing=standing).standing_text


def keys(fields: str) -> object:
    """Return the key of an instant."""
    at = {"at": datetime(2026, 6, 30, 22, 30, tzinfo=UTC)}
    return fill("{at:%d}", Arguments(at, [policy_of(fields).zone]))


def ended(fields: str) -> object:
    """Return whether an exhausted flow goes on, and whether its schedule stops."""
    paused: list[bool] = []
    policy = policy_of(fields)
    name = f"population/{policy.population}" if policy.population else policy.dataset
    refusal = BudgetExhausted("x", dataset=name)
    run = SimpleNamespace(
        id="r",
        stopped=False,
        refusal=lambda: refusal,
        wait_for_steps=lambda: None,
        surprises=[],
    )
    policies = {policy.dataset: policy}
    if policy.population:
        whole = policy.model_copy(update={"dataset": name, "population": None})
        policies[name] = whole.model_copy(update={"on_exhausted": OnExhausted()})
    project = SimpleNamespace(policies=policies)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flow, "current_project", lambda: project)
        patch.setattr(flow, "_pause_schedule", lambda: paused.append(True))
        patch.setattr(flow, "publish_budget", lambda *_: None)
        return flow._end(run, "value", None) == "value", paused


@pytest.fixture
def ran(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Callable[[str], object]:
    """Return a function that runs a step and one that fails under a policy."""

    def run(fields: str) -> object:
        folder = tmp_path / str(len([*tmp_path.iterdir()]))
        folder.mkdir()
        make_project(folder, monkeypatch, text_of(fields))
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


#: What shows the difference where the ledger's copy does not; None: a run.
SHOWN: dict[str, Callable[[str], object] | None] = {
    **dict.fromkeys(("alerts", "errors", "data_version")),
    **dict.fromkeys(("check.people", "about"), told),
    **dict.fromkeys(("on_exhausted.flow", "on_exhausted.schedule"), ended),
    "zone": keys,
    "pin": pinner,
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
    before, after = (re.sub("<(.*)[|](.*)>", rf"\{n}", FIELDS[name]) for n in (1, 2))
    show = SHOWN.get(name, pins) or ran
    assert show(before) == show(before)
    assert show(before) != show(after)


def test_what_members_of_a_population_say_holds_where_it_is_exhausted() -> None:
    """A population's file has no `on_exhausted`."""
    member = "population: people\n"
    assert ended(member) == (False, [])
    assert ended(f"{member}on_exhausted: {{flow: skip}}") == (True, [])
    paused = ended(f"{member}on_exhausted: {{schedule: pause}}")
    assert paused == (False, [True])
