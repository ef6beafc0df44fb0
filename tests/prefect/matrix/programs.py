"""What other processes run: flows to kill, workers, pools and clusters."""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from prefect import flow, task
from prefect.context import FlowRunContext
from prefect.exceptions import UpstreamTaskError
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
from prefect.task_runners import ProcessPoolTaskRunner

from dpflow import BudgetExhausted, PureDP, dp_flow, dp_task
from dpflow.prefect import flow as ends
from tests.prefect.matrix.support import mark, run_again, wait_until

TENTH = PureDP(epsilon="0.1")


def _noted(*_: Any) -> None:
    """Note that a hook fired."""
    mark("on_running")


@dp_task(dataset="shop", cost=TENTH)
def first(week: int) -> str:
    """Say which execution of the body this is: a replay repeats an earlier one."""
    return f"first {mark('first')}"


def _wait_for(file: str) -> None:
    """Wait for a file in small steps, which a signal can interrupt."""
    wait_until(Path(file).exists, file, 120, pause_at_most=0.02)


@dp_task(dataset="shop", cost=TENTH, on_running=[_noted])
def endless(week: int) -> str:
    """Wait to be killed, the first time."""
    turn = mark("endless")
    if turn == 1:
        _wait_for("never")
    return f"endless {turn}"


@dp_task(dataset="shop", cost=TENTH)
def lasting(week: int) -> str:
    """Go on when the flow is interrupted, or its server is away."""
    turn = mark("lasting")
    _wait_for("go")
    return f"lasting {turn}"


@dp_flow(name="report")
def deserted() -> list[str]:
    """Lose Prefect's server in the body of the second of three steps."""
    values = [first(1), lasting(1), first(2)]
    Path("values").write_text(" ".join(values), "utf-8")
    return values


def _flushed(flush: Any = ends.flush) -> bool:
    """Tell when dpflow is done at the end of a flow, the last flush included."""
    is_delivered: bool = flush()
    Path("flushed").touch()
    return is_delivered


def lost_server() -> list[str]:
    """Run a flow that loses its server, and tell of its end."""
    ends.flush = _flushed
    return deserted()


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
    value, future = first(1), lasting.submit(1)
    try:
        return [value, future.result()]
    except KeyboardInterrupt:
        Path("go").touch()
        raise


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


@dp_flow(name="report")
def until_exhausted() -> None:
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
    """Exhaust the budget in another process."""
    runner: Any = ProcessPoolTaskRunner(max_workers=1)
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


def dask() -> dict[str, Any]:
    """Let Dask workers die during a body and after some, then exhaust the budget."""
    from distributed import LocalCluster
    from prefect_dask import DaskTaskRunner

    with LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None
    ) as made:
        CLUSTER.append(made)
        runner: Any = DaskTaskRunner(address=made.scheduler_address)
        flows = mid_task, recomputed, until_exhausted
        lost, anew, ended = (each.with_options(task_runner=runner) for each in flows)
        return {
            "mid_task": lost(),
            "recomputed": anew(),
            "ended": ended(return_state=True).name,
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
        result = globals()[name](*arguments)
    Path(f"{name}.json").write_text(json.dumps(result), "utf-8")


if __name__ == "__main__":
    main()
