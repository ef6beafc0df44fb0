"""Type checkers see through `dp_task`, and it takes every option of `@task`."""

from __future__ import annotations

import inspect
import subprocess
import sys
import tomllib
from datetime import timedelta

import pytest
from prefect import Task, flow
from prefect.cache_policies import NO_CACHE, RUN_ID
from prefect.tasks import TaskOptions

from dpflow import PureDP, dp_task, private_task
from tests.prefect.support import charges
from tests.projects import ROOT

CASES = "tests/prefect/definitions/typing_cases.py"
TENTH = PureDP(epsilon="0.1")


def test_mypy_checks_the_cases_with_all_other_types():
    """Calls, submits and maps; an error that is none is one, too (`make types`)."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]
    assert CASES in settings["mypy"]["files"]
    assert settings["mypy"]["strict"]
    assert "type: ignore[" in (ROOT / CASES).read_text("utf-8")


@pytest.mark.slow
def test_another_checker_agrees():
    """As mypy; it takes half a minute."""
    checker = ["basedpyright", "--level", "error", "--pythonpath", sys.executable]
    done = subprocess.run(
        [sys.executable, "-m", *checker, CASES],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def hook(*_):
    """Stand for any hook."""


def condition(task, run, state) -> bool:
    """Stand for a retry condition."""
    return False


OPTIONS = {
    "name": "renamed",
    "description": "a text",
    "tags": {"a", "b"},
    "version": "7",
    "cache_policy": RUN_ID,
    "cache_key_fn": hook,
    "cache_expiration": timedelta(1),
    "task_run_name": "count-{week}",
    "retries": 3,
    "retry_delay_seconds": [1.0, 2.0],
    "retry_jitter_factor": 0.5,
    "persist_result": True,
    "result_storage": "local-file-system/kept",
    "result_serializer": "json",
    "result_storage_key": "count",
    "cache_result_in_memory": False,
    "timeout_seconds": 9,
    "log_prints": True,
    "refresh_cache": True,
    "on_completion": [hook],
    "on_failure": [hook],
    "on_running": [hook],
    "on_rollback": [hook],
    "on_commit": [hook],
    "retry_condition_fn": condition,
    "viz_return_value": 1,
    "asset_deps": ["dpflow://shop/raw"],
}
STORING = {
    "cache_policy",
    "cache_key_fn",
    "log_prints",
    "persist_result",
    "result_serializer",
    "result_storage",
    "result_storage_key",
}
#: What a task has of its own, however it was made.
OWN = {
    "fn",
    "__wrapped__",
    "__dpflow_charges__",
    "task_key",
    "step",
    "assets",
    "materialized_by",
    "source_code",
}


def count(week: int) -> int:
    """Stand for a body."""
    return week


def facts(made: Task) -> dict:
    """Return what a task is, apart from what it runs."""
    found = {k: v for k, v in vars(made).items() if k not in OWN}
    # A cache key function becomes a policy, of which no two are equal.
    return {**found, **{k: type(v) for k, v in found.items() if "cache_policy" in k}}


def test_these_are_all_options_of_a_task():
    """Prefect's own list, and the parameters of its class."""
    assert set(OPTIONS) == set(TaskOptions.__annotations__)
    assert set(OPTIONS) == set(inspect.signature(Task).parameters) - {"fn"}


@pytest.mark.parametrize("option", OPTIONS)
def test_each_option_means_what_it_means_to_a_task(option):
    """Except for the defaults that cost or tell something: they are off."""
    off = {"retries": 0, "cache_policy": NO_CACHE, "log_prints": False}
    given = {option: OPTIONS[option]}
    made = dp_task(dataset="shop", cost=TENTH, **given)(count)
    assert facts(made) == facts(Task(count, **{**off, **given}))
    plain = dp_task(dataset="shop", cost=TENTH)(count)
    assert facts(plain) == facts(Task(count, **off))
    assert facts(made) != facts(plain)
    assert facts(plain.with_options(**given)) == facts(made)
    assert facts(made.with_options(name="other")) == {**facts(made), "name": "other"}
    if option not in STORING:
        loader = private_task(**given)(count)
        off = {"persist_result": False, "cache_policy": NO_CACHE, "log_prints": False}
        assert facts(loader) == facts(Task(count, **{**off, **given}))


def test_all_options_work_together(project):
    """A step with everything set runs, and is charged once."""
    left_out = {"cache_key_fn", "result_storage", "result_storage_key", "name"}
    given = {k: v for k, v in OPTIONS.items() if k not in left_out}
    made = dp_task(dataset="shop", cost=TENTH, **given)(count)

    @flow(name="report")
    def report():
        return made(7)

    assert report() == 7
    assert charges(project) == 1
