"""What other processes run: flows to kill, workers, pools and clusters."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from prefect import flow, task
from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext
from prefect.exceptions import UpstreamTaskError
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
from prefect.task_runners import ProcessPoolTaskRunner

from dpflow import BudgetExhausted, PureDP, dp_flow, dp_task
from dpflow.prefect import flow as ends
from tests.prefect.matrix.support import execute, mark, run_again

TENTH = PureDP(epsilon="0.1")


def _noted(*_: Any) -> None:
    """Note that a hook fired."""
    mark("on_running")


@dp_task(dataset="shop", cost=TENTH)
def first(week: int) -> str:
    """Say which execution of the body this is: a replay repeats an earlier one."""
    return f"first {mark('first')}"


@dp_task(dataset="shop", cost=TENTH, on_running=[_noted])
def endless(week: int) -> str:
    """Wait to be killed, the first time."""
    turn = mark("endless")
    end = time.monotonic() + 120
    while turn == 1 and time.monotonic() < end:
        time.sleep(0.02)
    return f"endless {turn}"


@dp_task(dataset="shop", cost=TENTH)
def lasting(week: int) -> str:
    """Take long enough to be told to stop meanwhile."""
    turn = mark("lasting")
    time.sleep(3)
    mark("lasting ended")
    return f"lasting {turn}"


@dp_task(dataset="shop", cost=TENTH, release_key="kept/{week}")
def kept_week(week: str) -> str:
    """Make a release of a week."""
    return f"kept {mark('kept')}"


endless_week = dp_task(
    dataset="shop", cost=TENTH, name="endless_week", release_key="endless/{week}"
)(endless.fn.__wrapped__)


@dp_flow(name="keyed-week")
def keyed_week(week: str = "w1") -> list[str]:
    """Make a release, and be killed in the middle of the next."""
    return [kept_week(week), endless_week(week)]


@dp_task(dataset="shop", cost=TENTH)
def patient(week: int) -> str:
    """Wait until the test has taken the server away."""
    turn = mark("patient")
    end = time.monotonic() + 120
    while not Path("go").exists() and time.monotonic() < end:
        time.sleep(0.02)
    return f"patient {turn}"


#: When the function under `deserted` was done, and its values.
DONE: list[Any] = []


@dp_flow(name="report")
def deserted() -> list[str]:
    """Lose Prefect's server in the body of the second of three steps."""
    values = [first(1), patient(1), first(2)]
    DONE[:] = [time.monotonic(), values]
    return values


@contextmanager
def _timed(inside: Any = ends.flushed) -> Iterator[None]:
    """Tell how long dpflow takes at the end of a flow, the last flush included."""
    with inside():
        yield
    begun, values = DONE
    text = json.dumps({"seconds": time.monotonic() - begun, "values": values})
    Path("timed.part").write_text(text, "utf-8")
    Path("timed.part").rename("timed.json")


def lost_server() -> dict[str, Any]:
    """Run a flow that loses its server, and tell of its end."""
    ends.flushed = _timed  # type: ignore[assignment]
    return {"value": deserted()}


def _note_run() -> None:
    """Tell the test which flow run this is."""
    context = FlowRunContext.get()
    assert context is not None
    assert context.flow_run is not None
    Path("run.txt").write_text(str(context.flow_run.id), "utf-8")


@flow(name="report")
def called() -> list[str]:
    """Call the step that is killed."""
    _note_run()
    return [first(1), endless(1)]


@flow(name="report-submitted")
def submitted() -> list[str]:
    """Submit the step during which the flow is stopped."""
    _note_run()
    value = first(1)
    return [value, lasting.submit(1).result()]


@dp_task(dataset="shop", cost=PureDP(epsilon="0.3"))
def third(turn: int) -> int:
    """Fit three times."""
    mark("third")
    return os.getpid()


@task
def after(value: Any) -> Any:
    """Stand for what must not run after a refusal."""
    mark("after")
    return value


@dp_task(dataset="shop", cost=TENTH)
def suicide(week: int) -> str:
    """End the process in which the body runs, the first time."""
    turn = mark("suicide")
    if turn == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return f"suicide {turn}"


def _until_exhausted() -> None:
    """Submit one step more than fits, and what is behind it."""
    futures = [third.submit(turn) for turn in range(4)]
    behind = [after.submit(future) for future in futures]
    for future in [*futures, *behind]:
        # Process pools raise where what is behind a refusal is waited for.
        with suppress(UpstreamTaskError):
            future.wait()
    refused = [each for each in futures if each.state.name == "BudgetExhausted"]
    assert len(refused) == 1
    # `dp_flow` waits for this one, which is never run.
    third.submit(refused[0])
    assert sum(each.state.is_completed() for each in behind) == 3
    try:
        refused[0].result()
    except BudgetExhausted as error:
        mark(f"left {error.left['epsilon']}")


def process_pool() -> dict[str, Any]:
    """Exhaust the budget in a pool of processes, then lose one of them."""
    runner: Any = ProcessPoolTaskRunner(max_workers=2)
    report = until_exhausted.with_options(task_runner=runner)
    return {"ended": report(return_state=True).name, "pid": os.getpid()}


#: The cluster that the flows below run on; a flow that names it would be pickled
#: together with it.
CLUSTER: list[Any] = []


def _kill_workers() -> None:
    for worker in list(CLUSTER[0].workers.values()):
        os.kill(worker.pid, signal.SIGKILL)


@dp_flow(name="mid-task")
def mid_task() -> str:
    """Lose a Dask worker in the middle of a body."""
    return suicide.submit(1).result()


@dp_flow(name="recomputed")
def recomputed() -> list[str]:
    """Lose all Dask workers, and with them the results that they hold."""
    futures = [first.submit(week) for week in range(3)]
    for future in futures:
        future.wait()
    _kill_workers()
    return sorted(future.result() for future in futures)


@dp_flow(name="report")
def until_exhausted() -> None:
    """Submit one step more than fits."""
    _until_exhausted()


@dp_task(dataset="patients", cost=TENTH, release_key="tenth/{turn}")
def tenth(turn: int) -> int:
    """Fit ten times."""
    return turn


@dp_flow(name="until-refused")
def until_refused() -> None:
    """Call one step more than fits."""
    for turn in range(11):
        tenth(turn)


def dask() -> dict[str, Any]:
    """Let Dask workers die during a body and after some, then exhaust the budget."""
    from distributed import LocalCluster
    from prefect_dask import DaskTaskRunner

    with LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None
    ) as made:
        CLUSTER.append(made)
        runner: Any = DaskTaskRunner(address=made.scheduler_address)
        return {
            "mid_task": mid_task.with_options(task_runner=runner)(),
            "recomputed": recomputed.with_options(task_runner=runner)(),
            "ended": until_exhausted.with_options(task_runner=runner)(
                return_state=True
            ).name,
        }


def automated(block: str) -> dict[str, Any]:
    """Install the automations and exhaust the budget of a deployment's run."""
    from flows.automations import automations, block_id, install

    wanted = automations("patients", notify=block_id(block))
    install([*wanted, *wanted])
    install(wanted)
    made = until_refused.to_deployment("nightly").apply()
    with get_client(sync_client=True) as client:
        before = client.read_deployment(made).paused
        run = client.create_flow_run_from_deployment(made).id
    return {
        "deployment": str(made),
        "before": before,
        "ended": execute(until_refused, run).name,
    }


def canaries() -> dict[str, Any]:
    """Let private data pass by everything that Prefect could keep it in."""
    from tests.prefect.matrix.canaries import pass_by

    return pass_by()


def run(name: str) -> dict[str, Any]:
    """Run a flow by its name."""
    state = globals()[name](return_state=True)
    return {"name": state.name}


def again(name: str, flow_run: str) -> dict[str, Any]:
    """Retry a flow run as the button of Prefect's UI does."""
    state = run_again(globals()[name], flow_run)
    return {"name": state.name, "value": state.result()}


def main() -> None:
    """Run a program of this module and print what it returns."""
    # A shell starts what it runs in the background with SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    name, *arguments = sys.argv[1:]
    # The heartbeat thread adds a second to every sync flow run
    # (PrefectHQ/prefect#19641, #21276).
    with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        told = globals()[name](*arguments)
    Path(f"{name}.json").write_text(json.dumps(told), "utf-8")


if __name__ == "__main__":
    main()
