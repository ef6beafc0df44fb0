"""A flow that holds its whole run, killed in the middle of a body."""

from __future__ import annotations

from types import SimpleNamespace

from dpflow.config import settings
from dpflow.ledger import open_ledger
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.views import accounts, open_reservations
from tests.prefect.matrix.support import marks, wait_until


def look(folder):
    """Return what is spent, reserved and forfeited, and the open preflights."""
    found = settings(folder)
    ledger = open_ledger(found.ledger_url, policies=found.policies)
    try:
        assert verify(ledger).bad == []
        (view,) = accounts(ledger, "shop")
        rests = [
            (each.covers, each.alive, each.undrawn["shop#1"]["epsilon"])
            for each in open_reservations(ledger)
            if each.covers is not None
        ]
    finally:
        ledger.close()
    shares = (view.spent, view.reserved, view.forfeited)
    return tuple(share["epsilon"] for share in shares), rests


def killed_run(laboratory):
    """Kill a run that holds four steps in its second, and retry it from the UI."""
    folder = laboratory.project("killed-whole-run")
    with laboratory.running(folder, "run", "whole") as process:
        wait_until(lambda: marks(folder)["endless"], "the body")
        running = look(folder)
        run = (folder / "run.txt").read_text("utf-8")
        laboratory.task_reaches(run, "endless", "RUNNING")
        process.kill()
        process.wait()
    return SimpleNamespace(
        run=run,
        running=running,
        killed=look(folder),
        again=laboratory.run(folder, "again", "whole", run),
        at_last=look(folder),
    )


EXPERIMENTS = [killed_run]


def test_a_killed_run_keeps_what_it_held(found):
    """Nothing returns without a seal; the rest is shown with its run."""
    seen = found(killed_run)
    assert seen.running == (("0.1", "0.3", "0"), [(seen.run, True, "0.2")])
    assert seen.killed == (("0.1", "0", "0.3"), [(seen.run, False, "0.2")])


def test_its_retry_goes_on_with_the_rest_and_seals(found):
    """What was released is replayed, the lost step is paid again from what is held."""
    seen = found(killed_run)
    assert seen.again == {"name": "Completed", "value": ["first 1", "endless 2"]}
    assert seen.at_last == (("0.2", "0", "0.1"), [])
