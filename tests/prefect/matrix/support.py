"""What the matrix of Prefect's events asks of bodies, of the ledger and of Prefect."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.flow_engine import run_flow
from prefect.states import AwaitingRetry, State
from typer.testing import CliRunner

from dpflow.cli import app
from dpflow.config import settings
from dpflow.ledger import Ledger, open_ledger
from dpflow.ledger.views import accounts, history, open_reservations
from dpflow.ledger.views.entries import JournalEntry

_MARKS = "marks.txt"


def mark(text: str) -> int:
    """Note that a body runs, in a file of the project; return how often it has."""
    line = f"{text} {os.getpid()}\n".encode()
    descriptor = os.open(_MARKS, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)
    return marks()[text]


def marks(folder: Path | None = None) -> Counter[str]:
    """Return how often each body has run."""
    return Counter(text for text, _ in marked(folder))


def marked(folder: Path | None = None) -> list[tuple[str, int]]:
    """Return which body ran in which process, oldest first."""
    path = (folder or Path()) / _MARKS
    if not path.exists():
        return []
    lines = [line.rsplit(" ", 1) for line in path.read_text("utf-8").splitlines()]
    return [(text, int(process)) for text, process in lines]


def in_flow(call: Callable[[], Any], make_flow: Any = flow, **options: Any) -> Any:
    """Return a flow named report that calls a function."""

    def report() -> Any:
        return call()

    return make_flow(name="report", **options)(report)


def wait_until(
    ready: Callable[[], Any],
    what: str,
    seconds: float = 900,
    pause_at_most: float = 0.3,
) -> Any:
    """Wait until a question is answered with something true, and return that."""
    end, pause = time.monotonic() + seconds, 0.02
    while time.monotonic() < end:
        result = ready()
        if result:
            return result
        time.sleep(pause)
        pause = min(2 * pause, pause_at_most)
    msg = f"waited {seconds} s for {what}"
    raise TimeoutError(msg)


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """What a project's ledger says of its one dataset.

    Attributes:
        reserved: Charges that were made.
        outcomes: How the settled ones ended, oldest first.
        refused: Requests that were refused.
        open: Charges of living processes.
        orphans: Charges whose process is dead; they stay charged in full.
        spent: Epsilon settled.
        forfeited: Epsilon of the orphans.
    """

    reserved: int
    outcomes: tuple[str, ...]
    refused: int
    open: int
    orphans: int
    spent: str
    forfeited: str


def books(folder: Path | None = None, run: object = None) -> Books:
    """Read the ledger of a project, as another process would.

    Args:
        folder: The project; default: the working directory's.
        run: Only the charges of this flow run.
    """
    setup = settings(folder)
    ledger = open_ledger(setup.ledger_url, policies=setup.policies)
    try:
        # A charge may end in between, or its process, which all three tell.
        held, before = _held(ledger), None
        while held != before:
            entries = [
                entry
                for entry in journal(ledger)
                if run is None or entry.body.get("flow_run") == str(run)
            ]
            views = [v for v in accounts(ledger, "shop") if v.kind == "dataset"]
            held, before = _held(ledger), held
    finally:
        ledger.close()
    kinds = Counter(entry.kind for entry in entries)
    settlements = [entry for entry in entries if entry.kind == "settle"]
    made = [e for e in entries if e.kind == "reserve" and e.reservation in held]
    orphans = [entry for entry in made if not held[entry.reservation]]
    result = Books(
        reserved=kinds["reserve"],
        outcomes=tuple(entry.body["outcome"] for entry in settlements),
        refused=kinds["refuse"],
        open=len(made) - len(orphans),
        orphans=len(orphans),
        spent=_epsilon(settlements),
        forfeited=_epsilon(orphans),
    )
    for view in views if run is None else []:
        # The account's own tallies say the same as its journal.
        tallies = view.spent["epsilon"], view.forfeited["epsilon"]
        assert tallies == (result.spent, result.forfeited)
    return result


def _held(ledger: Ledger) -> dict[str, bool]:
    return {each.reservation: each.alive for each in open_reservations(ledger)}


def _epsilon(entries: list[JournalEntry]) -> str:
    total = sum((Decimal(entry.amount["epsilon"]) for entry in entries), Decimal())
    return f"{total.normalize():f}"


def journal(ledger: Any) -> list[JournalEntry]:
    """Return the journal of the dataset's account, oldest first."""
    entries = history(ledger, "shop", limit=1000)
    return sorted(entries, key=lambda entry: entry.seq)


def settled(reserved: int, spent: str, **others: Any) -> Books:
    """Return the books of charges that all completed, except as said."""
    facts = {"refused": 0, "open": 0, "orphans": 0, "forfeited": "0", **others}
    facts.setdefault("outcomes", ("completed",) * reserved)
    return Books(reserved=reserved, spent=spent, **facts)


def run_again(flow: Any, flow_run_id: Any) -> State[Any]:
    """Retry a flow run as the button of Prefect's UI does, and return its state."""
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(flow_run_id, AwaitingRetry())
    return execute(flow, flow_run_id)


def execute(flow: Any, flow_run_id: Any) -> State[Any]:
    """Execute a flow run that Prefect knows, as a worker does."""
    with get_client(sync_client=True) as client:
        run = client.read_flow_run(flow_run_id)
    state: State[Any] = run_flow(
        flow, flow_run=run, parameters=run.parameters, return_type="state"
    )
    return state


def run_deployed(
    flow: Any, name: str = "nightly", **options: Any
) -> tuple[Any, State[Any]]:
    """Make a run of a deployment, execute it as a worker does; return both."""
    made = flow.to_deployment(name, **options).apply()
    with get_client(sync_client=True) as client:
        run = client.create_flow_run_from_deployment(made).id
    return made, execute(flow, run)


def resume_insisting(deployment: str) -> None:
    """Resume a schedule with --force, after a refusal that gives its reason."""
    refused = CliRunner().invoke(app, ["resume", deployment])
    assert refused.exit_code == 1
    assert "stays paused" in refused.stderr
    assert "`dpflow policy apply shop --new-term --reason TEXT`" in refused.stderr
    done = CliRunner().invoke(app, ["resume", deployment, "--force"])
    assert done.exit_code == 0, done.stderr
    assert "refused all the same" in done.stdout


def flow_run(flow_run_id: Any) -> Any:
    """Return a flow run as Prefect's database has it."""
    with get_client(sync_client=True) as client:
        return client.read_flow_run(flow_run_id)


def task_runs(flow_run_id: Any, ended: int) -> list[Any]:
    """Return a flow run's task runs, oldest first, after a number of them ended."""
    only = FlowRunFilter(id=FlowRunFilterId(any_=[flow_run_id]))

    def finished() -> list[Any]:
        with get_client(sync_client=True) as client:
            runs = client.read_task_runs(flow_run_filter=only)
        done = [run for run in runs if run.state and run.state.is_final()]
        return runs if len(done) >= ended else []

    runs = wait_until(finished, f"{ended} ended task runs")
    return sorted(runs, key=lambda run: str(run.start_time))
