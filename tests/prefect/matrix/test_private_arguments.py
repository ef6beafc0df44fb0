"""Private arguments that Prefect would keep are refused, with the reason."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from prefect import allow_failure, flow, unmapped
from prefect.task_runners import PrefectTaskRunner
from pydantic import BaseModel, SecretStr

from dpflow import DPStepFailed, PureDP, dp_task, private_task
from dpflow.exceptions import ConfigurationError
from dpflow.prefect import privacy
from tests.prefect.matrix.support import in_flow, mark, marks
from tests.projects import kinds

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
NUMBERS = np.arange(3)


def copied(text: str) -> str:
    """Return an equal text that is another object."""
    return bytes(text, "utf-8").decode()


GIVEN: list[tuple[object, object]] = [
    (FRAME, FRAME),
    ([FRAME], FRAME),
    ({"data": {"deep": FRAME}}, FRAME),
    (Pair(FRAME), FRAME),
    (NUMBERS, NUMBERS),
    ("rows of Ann", copied("rows of Ann")),
    (["rows of Ann"], copied("rows of Ann")),
    ({"rows of Ann": 1}, copied("rows of Ann")),
    (Model(rows=["Ann"]), copied("Ann")),
    (SecretStr("Ann"), "Ann"),
    (["Ann", "Bob"], ["Ann", "Bob"]),
    (123456789, 123456789),
    (Path("/ann"), Path("/ann")),
]


def test_a_private_argument_is_found_in_the_flows_parameters(monkeypatch):
    """By identity, and if it is plain data by its value, wherever it is inside."""
    for given, argument in GIVEN:
        parameters = {"data": given}
        monkeypatch.setattr(privacy, "flow_parameters", lambda given=parameters: given)
        for frame in (argument, allow_failure(argument)):
            with pytest.raises(ConfigurationError, match=KEPT) as caught:
                privacy.check_flow_parameters(count.step, {"frame": frame})
            assert "Ann" not in str(caught.value)
            assert "'frame' is in the parameter 'data'" in str(caught.value)


def test_a_private_argument_from_the_flows_parameters_is_refused(project):
    """However the step is called; what is only equal runs."""
    ways = (
        count,
        count.fn,
        lambda value: count.map([value], unmapped(2)).result()[0],
        lambda value: count.submit(allow_failure(value)).result(),
    )

    @flow(name="report", validate_parameters=False)
    def report(data):
        for ask in ways:
            for private in (data[0], copied("rows of Ann")):
                with pytest.raises(ConfigurationError, match=KEPT):
                    ask(private)
        assert marks() == {}
        return [ask(pd.DataFrame({"name": ["x"]})) for ask in ways]

    assert len(report([FRAME, "rows of Ann", True])) == 4
    assert kinds().count("reserve") == marks()["count"]


class Shop:
    """Holds private data, as the instance of a method may."""

    frame = FRAME

    @dp_task(dataset="shop", cost=PRIVATE["cost"])
    def count(self, week: int) -> int:
        """Count what the instance holds."""
        return len(self.frame) + week


def test_a_background_step_over_private_data_is_refused(project):
    """Prefect would pickle it, or the instance with all it holds, to its storage."""

    def report():
        for step, given, named in ((count, FRAME, "frame"), (Shop().count, 1, "self")):
            for ask in (step.delay, lambda x, s=step: s.apply_async((x,)), step.submit):
                with pytest.raises(ConfigurationError, match="as a pickle that") as e:
                    ask(given)
                assert f"({named})" in e.value.message

    in_flow(report, task_runner=PrefectTaskRunner())()


def test_a_loaders_error_shows_its_type_only(project, caplog):
    """Its text can quote the data; `errors="keep"` shows it where that is safe."""

    def load() -> int:
        raise ValueError("canary-31415")

    text = "ValueError in private task 'load'"
    with pytest.raises(DPStepFailed, match=text) as error:
        in_flow(private_task()(load))()
    assert error.value.__context__ is None
    assert "canary-31415" not in caplog.text
    with pytest.raises(ValueError, match="canary-31415"):
        in_flow(private_task(errors="keep")(load))()
