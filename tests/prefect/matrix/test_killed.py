"""Processes that are killed, told to stop or cancelled, in the middle of a body."""

from __future__ import annotations

import re
import signal
from types import SimpleNamespace

from tests.prefect.matrix.support import books, marks, settled, wait_until


def _run_of(folder):
    return (folder / "run.txt").read_text("utf-8")


def killed_script(laboratory):
    """Kill a script in the middle of a body, and retry its flow run from the UI."""
    folder = laboratory.project("killed-script")
    with laboratory.running(folder, "run", "called") as process:
        wait_until(lambda: marks(folder)["endless"], "the body")
        before = books(folder)
        run = _run_of(folder)
        laboratory.task_reaches(run, "endless", "RUNNING")
        process.kill()
        process.wait()
    return SimpleNamespace(
        before=before,
        after=books(folder),
        flow=laboratory.state("flow", run),
        tasks=laboratory.tasks(run),
        again=laboratory.run(folder, "again", "called", run),
        at_last=books(folder),
        marks=marks(folder),
    )


def test_a_killed_script_forfeits_its_charge(found):
    """Nobody knows what the step did: it stays charged in full, for ever."""
    seen = found(killed_script)
    open_one = settled(2, "0.1", outcomes=("completed",), open=1)
    assert seen.before == open_one
    lost = {"orphans": 1, "forfeited": "0.1"}
    assert seen.after == settled(2, "0.1", outcomes=("completed",), **lost)
    assert (seen.flow, seen.tasks["endless"]) == ("RUNNING", "RUNNING")


def test_its_retry_replays_what_was_settled_and_pays_for_the_rest(found):
    """A dead claim frees its release key."""
    seen = found(killed_script)
    assert seen.again == {"name": "Completed", "value": ["first 1", "endless 2"]}
    assert seen.marks["first"] == 1
    assert seen.marks["endless"] == 2
    lost = {"orphans": 1, "forfeited": "0.1"}
    assert seen.at_last == settled(3, "0.2", outcomes=("completed",) * 2, **lost)


def _logged_end(folder, name):
    """Return how a task ended; at shutdown the server may never hear of it."""
    # PrefectHQ/prefect#19261, PrefectHQ/prefect#18310, PrefectHQ/prefect#22247
    log = (folder / "run.log").read_text("utf-8")
    (end,) = re.findall(rf"Task run '{name}-\w+' - Finished in state (\w+)\(", log)
    return end


def stopped(laboratory, name, number, flow, body):
    """Send a script a signal in the middle of a body."""
    folder = laboratory.project(name)
    with laboratory.running(folder, "run", flow) as process:
        wait_until(lambda: marks(folder)[body], "the body")
        run = _run_of(folder)
        process.send_signal(number)
        process.wait(timeout=600)
    return SimpleNamespace(
        books=books(folder),
        flow=laboratory.state("flow", run),
        task=_logged_end(folder, body),
        again=laboratory.run(folder, "again", flow, run),
        at_last=books(folder),
        marks=marks(folder),
    )


def terminated(laboratory):
    """SIGTERM, the step called."""
    return stopped(laboratory, "term-called", signal.SIGTERM, "called", "endless")


def interrupted(laboratory):
    """SIGINT, the step submitted."""
    return stopped(laboratory, "int-submitted", signal.SIGINT, "submitted", "lasting")


def test_a_called_step_that_is_told_to_stop_is_charged_in_full(found):
    """The body sees no Exception; Prefect's hook fires twice, the charge is one."""
    seen = found(terminated)
    assert (seen.flow, seen.task) == ("CRASHED", "Crashed")
    assert seen.books == settled(2, "0.2", outcomes=("completed", "failed"))
    assert seen.again == {"name": "Completed", "value": ["first 1", "endless 2"]}
    assert seen.marks["first"] == 1
    assert seen.marks["on_running"] == 3
    outcomes = ("completed", "failed", "completed")
    assert seen.at_last == settled(3, "0.3", outcomes=outcomes)


def test_a_submitted_step_runs_to_its_end_behind_the_crash(found):
    """Its release is kept, and a retry of the flow run replays it."""
    seen = found(interrupted)
    assert (seen.flow, seen.task) == ("CRASHED", "Completed")
    assert seen.books == settled(2, "0.2")
    assert seen.again == {"name": "Completed", "value": ["first 1", "lasting 1"]}
    assert seen.at_last == settled(2, "0.2")
