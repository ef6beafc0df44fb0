"""The weekly report as prefect.yaml deploys it, run by a worker on its schedule."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from datetime import UTC, datetime
from types import SimpleNamespace

from dpflow.config import settings
from dpflow.ledger import create_ledger, open_ledger, pin_ledger
from dpflow.ledger.views import history
from tests.prefect.matrix.support import wait_until
from tests.projects import ROOT

NAME = "weekly-report/fast-forward"
#: One week of mu**2 = 1/21**2 + 1/13**2 + 1/17**2, and one step of the second.
SMALL = "budget: {epsilon: 0.49, delta: 1e-6}"
MORE = """budget: {epsilon: 3, delta: 1e-6}
lifetime: {epsilon: 4, delta: 1e-5}"""
#: For a machine on which each run takes minutes; an idle one needs seconds.
PATIENCE = 1200
RETRY = {"type": "SCHEDULED", "name": "AwaitingRetry"}


def scheduled(laboratory):
    """Deploy the weekly report by its prefect.yaml and let a worker run its ticks."""
    folder = _weekly_project(laboratory.folder("weekly"))
    laboratory.command(folder, *POOL)
    laboratory.command(folder, *DEPLOY)
    elsewhere = laboratory.folder("elsewhere")
    seen = SimpleNamespace()
    runs = _Runs(laboratory)
    query = {"PREFECT_WORKER_QUERY_SECONDS": "2"}
    with laboratory.serving(elsewhere, *WORKER, **query):
        wait_until(runs.paused, "the pause", PATIENCE, pause_at_most=2)
        runs.wait_for_all()
        seen.first = runs.ended()
        seen.after_exhaustion = _entries(folder)
        laboratory.reaches("flow", runs.duplicate("COMPLETED"), "COMPLETED")
        # A redeploy forgets the pause (PrefectHQ/prefect#19302).
        laboratory.command(folder, *DEPLOY)
        seen.unpaused = not runs.paused()
        wait_until(runs.paused, "the second pause", PATIENCE, pause_at_most=2)
        runs.wait_for_all()
        seen.second = runs.ended()
        seen.after_redeploy = _entries(folder)
        _replace_budget(folder / "policies" / "cdnow.yaml", MORE)
        laboratory.command(folder, *NEW_TERM)
        halted = runs.first("CANCELLED")["id"]
        laboratory.ask(f"flow_runs/{halted}/set_state", state=RETRY)
        laboratory.reaches("flow", halted, "COMPLETED")
        seen.at_last = _entries(folder)
    seen.resumed = laboratory.command(folder, "dpflow", "resume", NAME)
    seen.paused = runs.paused()
    wait_until(runs.waiting, "the next ticks")
    seen.retried = laboratory.ask(f"flow_runs/{halted}")
    seen.reports = sorted(path.stem for path in (folder / "reports").iterdir())
    return seen


OFF = ", active: false"
POOL = ("prefect", "work-pool", "create", "--type", "process", "reports")
DEPLOY = ("prefect", "--no-prompt", "deploy", "--name", NAME)
#: One at a time: ticks that a slow machine is late with wait for the worker.
WORKER = ("prefect", "worker", "start", "--pool", "reports", "--limit", "1")
NEW_TERM = (
    "dpflow", "policy", "apply", "cdnow", "--new-term", "--reason", "a new year",
)  # fmt: skip


def _weekly_project(folder):
    """Copy the example project, with a smaller budget and its schedule on."""
    shutil.copytree(ROOT / "flows", folder / "flows")
    (folder / "policies").mkdir()
    policy = folder / "policies" / "cdnow.yaml"
    shutil.copy(ROOT / "policies" / "cdnow.yaml", policy)
    _replace_budget(policy, SMALL)
    text = (ROOT / "prefect.yaml").read_text("utf-8")
    assert text.count(OFF) == 1
    # A tick a minute: more of them would be late, and each run of one is a process.
    (folder / "prefect.yaml").write_text(text.replace(OFF, ""), "utf-8")
    (folder / "pyproject.toml").touch()
    found = settings(folder)
    ledger = create_ledger(found.ledger_url)
    pin_ledger(ledger, found.policies)
    ledger.close()
    return folder


def _replace_budget(policy, budget):
    text, times = re.subn(
        "^budget: .*$", budget, policy.read_text("utf-8"), flags=re.MULTILINE
    )
    assert times == 1
    policy.write_text(text, "utf-8")


def _entries(folder):
    """Count the entries of each term's account, by step and kind."""
    found = settings(folder)
    ledger = open_ledger(found.ledger_url, policies=found.policies)
    try:
        entries = history(ledger, "cdnow", limit=1000)
    finally:
        ledger.close()
    return Counter(
        (each.account, each.kind, each.body["step"])
        for each in entries
        if each.kind in ("reserve", "settle", "refuse")
    )


class _Runs:
    """The deployment's flow runs, as the server tells them."""

    def __init__(self, laboratory):
        self._ask = laboratory.ask
        self.deployment = self._read()["id"]

    def _read(self):
        return self._ask(f"deployments/name/{NAME}")

    def paused(self):
        return self._read()["paused"]

    def all(self):
        only = {"id": {"any_": [self.deployment]}}
        found = self._ask("flow_runs/filter", deployments=only)
        return sorted(found, key=lambda run: run["expected_start_time"])

    def ended(self):
        """Count the runs that have begun, by their state."""
        states = (run["state_type"] for run in self.all())
        return Counter(state for state in states if state != "SCHEDULED")

    def waiting(self):
        """Say how many ticks the schedule has ahead."""
        return sum(run["state_name"] == "Scheduled" for run in self.all())

    def first(self, state):
        return next(run for run in self.all() if run["state_type"] == state)

    def duplicate(self, state):
        """Make another run for the tick of the first one that ended so."""
        due = self.first(state)["expected_start_time"]
        when = {"type": "SCHEDULED", "state_details": {"scheduled_time": due}}
        path = f"deployments/{self.deployment}/create_flow_run"
        return self._ask(path, state=when)["id"]

    def wait_for_all(self):
        """Wait until no run is under way or overdue: a pause lets those still run.

        Patience is for one run: a busy machine is late with more ticks than one.
        """
        going = self._going()
        while going:
            wait_until(
                lambda before=going: self._going() != before,
                "the next of the runs that go on",
                PATIENCE,
                pause_at_most=2,
            )
            going = self._going()

    def _going(self):
        """Return which runs are under way or overdue, and in which state."""
        return {run["id"]: run["state_name"] for run in self.all() if _going(run)}


def _going(run):
    if run["state_type"] in ("COMPLETED", "CANCELLED", "FAILED", "CRASHED"):
        return False
    due = datetime.fromisoformat(run["expected_start_time"])
    return run["state_type"] != "SCHEDULED" or due <= datetime.now(UTC)


STEPS = ("active_customers", "revenue", "basket_sizes")


def test_the_deployed_report_runs_until_its_budget_is_gone(found):
    """One tick fits, the next halts at its second step, and pauses the schedule."""
    seen = found(scheduled)
    assert seen.first["COMPLETED"] == 1
    assert seen.first["CANCELLED"] >= 1
    assert set(seen.first) == {"COMPLETED", "CANCELLED"}
    assert _charged(seen.after_exhaustion, "cdnow#1") == [2, 1, 1]


def test_a_redeploy_and_a_duplicate_tick_spend_nothing(found):
    """The pause is forgotten and repeated; the duplicate replays its three releases."""
    seen = found(scheduled)
    assert seen.unpaused
    assert seen.second["COMPLETED"] == 2
    assert seen.second["CANCELLED"] > seen.first["CANCELLED"]
    assert _charged(seen.after_redeploy, "cdnow#1") == [2, 1, 1]


def test_a_new_term_lets_the_halted_run_end_and_the_schedule_go_on(found):
    """Retried from the UI it replays what the old term paid, and charges the rest."""
    seen = found(scheduled)
    assert (seen.retried["state_type"], seen.retried["run_count"]) == ("COMPLETED", 2)
    assert _charged(seen.at_last, "cdnow#1") == [2, 1, 1]
    assert _charged(seen.at_last, "cdnow#2") == [0, 1, 1]
    assert len(seen.reports) == 2
    assert "Resumed" in seen.resumed
    assert not seen.paused


def _charged(entries, account):
    """Return how often each step was charged; all charges are settled."""
    charged = [entries[account, "reserve", step] for step in STEPS]
    assert charged == [entries[account, "settle", step] for step in STEPS]
    return charged


#: It waits for minutes, while others go on.
BEGIN_FIRST = True
EXPERIMENTS = [scheduled]
