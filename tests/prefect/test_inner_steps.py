"""Tasks inside the body of another step: nothing of them is kept by Prefect."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL
from prefect.task_runners import ProcessPoolTaskRunner

from dpflow import PureDP, dp_flow, dp_task, guarded, private_task, spend
from dpflow.exceptions import BudgetRefused, ConfigurationError, DPStepFailed
from dpflow.prefect.delivery import flush
from tests.guard.test_inner_steps import raised, texts
from tests.projects import caught, ledger_bytes

TENTH = PureDP(epsilon="0.1")
CANARY = "canary-" + "2718281828"

POLICY = """
dataset: shop
unit: customer
relation: add-or-remove
data_version: "1"
budget: {epsilon: 30}
filter: basic
alerts: [0.005, 0.05]
other_flows: allow
"""


@pytest.fixture
def shop(make_project):
    """Return a project with room for all steps but one."""
    return make_project(POLICY)


def inner(**declared):
    """Return a task over one argument, defined outside of every body."""

    def count(x=None):
        return 1

    declared = {"dataset": "shop", "cost": TENTH, "name": "inner", **declared}
    return dp_task(**declared)(count)


KEYED = inner(release_key="key/{x}")
UNFIT = inner(release_key="key/{x.year}")
NAMED = inner(task_run_name="count-{x}")
CACHED = inner(cache_key_fn=lambda _, arguments: arguments["x"])
STORED = inner(result_storage_key="key-{parameters[x]}", persist_result=True)
TOO_MUCH = inner(cost=PureDP(epsilon=50), release_key="key/{x}")


@dp_task(dataset="shop", cost=TENTH)
def fails(x: str) -> int:
    """Raise what was given."""
    raise ValueError(x)


def block(x):
    """Enter a block by that name."""
    with spend(dataset="shop", cost=TENTH, step=x):
        pass


ROUTES = {
    "key": KEYED,
    "key-submitted": lambda x: KEYED.submit(x).result(),
    "key-mapped": lambda x: KEYED.map([x]).result(),
    "key-unfit": UNFIT,
    "run-name": NAMED,
    "run-name-submitted": lambda x: NAMED.submit(x).result(),
    "cache-key": CACHED,
    "storage-key": STORED,
    "refused": TOO_MUCH,
    "background": KEYED.delay,
    "fails": fails,
    "defined": lambda x: inner(name=x)(1),
    "guarded": lambda x: guarded(dataset="shop", cost=TENTH, name=x)(lambda: 1)(),
    "renamed": lambda x: KEYED.with_options(name=x)(1),
    "renamed-run": lambda x: KEYED.with_options(task_run_name=x)(1),
    "version": lambda x: KEYED.with_options(data_version=x)(1),
    "assets": lambda x: KEYED.with_options(assets=[f"dpflow://shop/{x}"])(1),
    "block": block,
    "dataset": lambda x: inner(dataset=x)(1),
}


def prefects_bytes():
    """Return all that Prefect's database holds, the log included."""
    url = PREFECT_API_DATABASE_CONNECTION_URL.value()
    path = Path(str(url).split("///", 1)[1])
    with closing(sqlite3.connect(path)) as database:
        return "\n".join(database.iterdump())


def outer_of(route, *, quiet):
    """Return a step whose body acts on what it has read."""

    @dp_task(dataset="shop", cost=TENTH, name="outer")
    def outer():
        with suppress(Exception if quiet else ()):
            ROUTES[route](f"{CANARY}-{route}")
        return 1

    return outer


def test_prefect_keeps_nothing_that_a_body_made(shop, caplog):
    """Neither states, logs, names, events nor artifacts; nor does the ledger."""
    steps = [
        outer_of(route, quiet=quiet) for route in ROUTES for quiet in (True, False)
    ]
    errors = []

    @dp_flow(name="report")
    def report():
        errors.extend(map(raised, steps))
        outer_of("fails", quiet=False)()

    error = raised(report)
    assert isinstance(error, BudgetRefused)  # of the route that asks for too much
    assert len(errors) == len(steps)
    assert isinstance(raised(dp_flow(name="report")(_fails)), DPStepFailed)
    for each in (error, *errors):
        assert CANARY not in texts(each)
    flush()
    assert CANARY not in caplog.text
    assert CANARY.encode() not in ledger_bytes(shop)
    assert CANARY not in prefects_bytes()


def _fails():
    outer_of("fails", quiet=False)()


def test_the_dump_would_show_it(shop):
    """The test above can fail: a run's name is kept."""

    @dp_flow(name="report", flow_run_name="shown-" + CANARY[:10])
    def report():
        return KEYED("a")

    report()
    assert "shown-" + CANARY[:10] in prefects_bytes()


def test_a_refused_inner_task_ends_its_outer_one_as_refused(shop):
    """Nobody tries it again, and it says that the outer one was charged."""

    @dp_task(dataset="shop", cost=TENTH, name="outer", retries=3)
    def outer():
        return TOO_MUCH("a")

    seen = []

    @dp_flow(name="report")
    def report():
        seen.append(outer(return_state=True))
        return 1

    report(return_state=True)
    (state,) = seen
    assert state.name == "BudgetRefused"
    assert "'outer' itself was charged in full" in state.message
    assert "othing was charged" not in state.message
    with pytest.raises(BudgetRefused):
        state.result()


def test_a_refused_step_inside_a_loader_stays_a_refusal(shop):
    """Its text may be made of what was loaded."""
    seen = []

    @private_task(name="load")
    def load():
        with spend(dataset="shop", cost=PureDP(epsilon=50), step=CANARY):
            pass

    @dp_flow(name="report")
    def report():
        with pytest.raises(BudgetRefused) as error:
            load()
        seen.append(error.value)

    report(return_state=True)
    assert "inside private task 'load'" in seen[0].message
    assert CANARY not in texts(seen[0])


def test_inside_a_body_a_task_is_not_sent_to_another_process(shop):
    """There nobody would know that a body has made its arguments."""
    seen = []

    @dp_task(dataset="shop", cost=TENTH, name="outer")
    def outer():
        seen.append(caught(lambda: KEYED.submit(CANARY)))
        return 1

    @dp_flow(name="report", task_runner=ProcessPoolTaskRunner(max_workers=1))
    def report():
        return outer()

    report()
    assert type(seen[0]) is ConfigurationError
    assert "another process" in seen[0].message
