"""Private arguments that Prefect would keep are refused, with the reason."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from prefect import allow_failure, flow, task, unmapped
from prefect.cache_policies import DEFAULT, INPUTS, RUN_ID
from prefect.filesystems import LocalFileSystem
from prefect.settings import PREFECT_TASKS_DEFAULT_PERSIST_RESULT, temporary_settings
from prefect.task_runners import PrefectTaskRunner
from pydantic import BaseModel, SecretStr

from dpflow import DPStepFailed, PureDP, dp_task, private_task
from dpflow.exceptions import ConfigurationError
from dpflow.prefect import privacy
from tests.prefect.matrix.support import mark, marks
from tests.prefect.support import charges

PRIVATE: Any = {
    "dataset": "shop",
    "cost": PureDP(epsilon="0.1"),
    "private": ("frame",),
    "data_version": "1",
}
KEPT = "Prefect keeps the parameters of flows"


@dp_task(**PRIVATE)
def count(frame: Any, week: int = 1) -> int:
    """Stand for a step over private data."""
    return mark("count")


@dataclass
class Pair:
    """A parameter with a part."""

    left: object


class Model(BaseModel):
    """A parameter that pydantic checks."""

    rows: list[str]


FRAME = pd.DataFrame({"name": ["x"]})


def copied(text: str) -> str:
    """Return an equal text that is another object."""
    return bytes(text, "utf-8").decode()


def cache_key(context: object, arguments: dict[str, Any]) -> str:
    """Stand for an author's cache key."""
    return f"{context}{arguments}"


GIVEN: list[tuple[object, object]] = [
    (FRAME, FRAME),
    ([FRAME], FRAME),
    ({"data": {"deep": FRAME}}, FRAME),
    (Pair(FRAME), FRAME),
    (np.arange(3), None),
    ("rows of Ann", copied("rows of Ann")),
    (["rows of Ann"], copied("rows of Ann")),
    ({"rows of Ann": 1}, copied("rows of Ann")),
    (Model(rows=["Ann"]), copied("Ann")),
    (SecretStr("Ann"), "Ann"),
    (["Ann", "Bob"], ["Ann", "Bob"]),
    (123456789, 123456789),
    (Path("/ann"), Path("/ann")),
]


@pytest.fixture
def within(monkeypatch):
    """Return a function that lets steps be looked at as in a flow of a parameter."""

    def enter(data):
        context = SimpleNamespace(parameters={"data": data})
        monkeypatch.setattr(
            privacy, "FlowRunContext", SimpleNamespace(get=lambda: context)
        )

    return enter


@pytest.mark.parametrize(("given", "argument"), GIVEN)
def test_a_private_argument_is_found_in_the_flows_parameters(within, given, argument):
    """By identity, and if it is plain data by its value, wherever it is inside."""
    within(given)
    value = given if argument is None else argument
    for frame in (value, allow_failure(value)):
        with pytest.raises(ConfigurationError, match=KEPT) as caught:
            privacy.check_flow_parameters(count.step, {"frame": frame})
        assert "Ann" not in str(caught.value)
        assert "'frame' is in the parameter 'data'" in str(caught.value)


@pytest.mark.parametrize("how", ["call", "submit", "map", "fn"])
def test_a_private_argument_from_the_flows_parameters_is_refused(project, how):
    """However the step is called; what is only equal runs."""

    def ask(value):
        if how == "map":
            return count.map([value], unmapped(2)).result()[0]
        if how == "submit":
            return count.submit(allow_failure(value)).result()
        return {"call": count, "fn": count.fn}[how](value)

    @flow(name="report", validate_parameters=False)
    def report(data):
        with pytest.raises(ConfigurationError, match=KEPT):
            ask(data[0])
        with pytest.raises(ConfigurationError, match=KEPT):
            ask(copied("rows of Ann"))
        assert marks() == {}
        return ask(pd.DataFrame({"name": ["x"]}))

    assert report([FRAME, "rows of Ann", True]) == 1
    assert charges(project) == 1


@pytest.mark.parametrize("name", ["count-{frame}", "{week}-{frame.shape}", "{nobody}"])
def test_a_run_is_not_named_after_private_arguments(name):
    """The template is checked when the step is defined, and when it is renamed."""
    with pytest.raises(ConfigurationError, match="task_run_name"):
        dp_task(**PRIVATE, task_run_name=name)(count.fn.__wrapped__)
    with pytest.raises(ConfigurationError, match="task_run_name"):
        count.with_options(task_run_name=name)


OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"task_run_name": lambda: "x"}, "is a function, which sees"),
    ({"cache_policy": INPUTS}, "unsalted digest"),
    ({"cache_policy": DEFAULT}, "unsalted digest"),
    ({"cache_policy": RUN_ID + INPUTS}, "unsalted digest"),
    ({"cache_key_fn": cache_key}, "cache_key_fn= sees"),
    ({"result_storage_key": "{parameters[frame]}"}, "result_storage_key"),
    ({"result_storage_key": "{task_run.parameters[frame]}"}, "result_storage_key"),
    ({"result_storage_key": "{parameters}"}, "result_storage_key"),
]


@pytest.mark.parametrize(("options", "reason"), OPTIONS)
def test_options_that_keep_private_arguments_are_refused(options, reason):
    """When the step is defined, and when it gets other options."""
    with pytest.raises(ConfigurationError, match=reason):
        dp_task(**PRIVATE, **options)(count.fn.__wrapped__)
    with pytest.raises(ConfigurationError, match=reason):
        count.with_options(**options)


class Shop:
    """Holds private data, as the instance of a method may."""

    frame = FRAME

    @dp_task(dataset="shop", cost=PRIVATE["cost"])
    def count(self, week: int) -> int:
        """Count what the instance holds."""
        return len(self.frame) + week


@pytest.mark.parametrize(
    ("step", "given", "named"),
    [(count, FRAME, "frame"), (Shop().count, 1, "self")],
    ids=["argument", "method"],
)
def test_a_background_step_over_private_data_is_refused(project, step, given, named):
    """Prefect would pickle it, or the instance with all it holds, to its storage."""
    ways = (step.delay, lambda given: step.apply_async((given,)), step.submit)
    refused = []

    @flow(name="report", task_runner=PrefectTaskRunner())
    def report():
        for ask in ways:
            with pytest.raises(ConfigurationError, match="as a pickle that stays") as e:
                ask(given)
            refused.append(e.value.message)

    report()
    assert ["(" + named + ")" in told for told in refused] == [True] * 3


def test_what_a_body_computes_by_tasks_is_not_stored(project, tmp_path):
    """They would inherit the persistence of the step, of the flow or of a setting."""
    storage = tmp_path / "storage"
    block = LocalFileSystem(basepath=str(storage))
    block.save("inside", overwrite=True, _sync=True)

    @task
    def inside() -> str:
        return "not-released"

    @task
    async def inside_async() -> str:
        return "not-released"

    @task
    def outside(value: str) -> str:
        return f"stored-{value}"

    @dp_task(dataset="shop", cost=PRIVATE["cost"], persist_result=True)
    def step() -> str:
        return f"released-{len(inside() + inside.submit().result())}"

    @dp_task(dataset="shop", cost=PRIVATE["cost"], persist_result=True)
    async def step_async() -> str:
        return f"released-{len(await inside_async())}"

    @flow(
        name="report",
        persist_result=True,
        result_storage=block,
        result_serializer="json",
    )
    async def report():
        return outside(step() + await step_async() + step.fn())

    with temporary_settings({PREFECT_TASKS_DEFAULT_PERSIST_RESULT: True}):
        expected = "stored-released-24released-12released-24"
        assert asyncio.run(report()) == expected
    stored = "".join(path.read_text("utf-8") for path in storage.iterdir())
    assert expected in stored
    assert "not-released" not in stored


def test_a_loaders_error_is_told_by_its_type(project, caplog):
    """Its text can quote the data; `errors="keep"` shows it where that is safe."""

    def load() -> int:
        raise ValueError("canary-31415")

    hidden, shown = private_task()(load), private_task(errors="keep")(load)

    @flow(name="report")
    def report(keep: bool):
        return (shown if keep else hidden)()

    with pytest.raises(
        DPStepFailed, match="ValueError in private task 'load'"
    ) as found:
        report(keep=False)
    assert found.value.__context__ is None
    assert "canary-31415" not in caplog.text
    with pytest.raises(ValueError, match="canary-31415"):
        report(keep=True)
