"""The program behind `dpflow demo`: a weekly report on real data.

The flow and the policy are the project's own examples. A second run costs nothing:
every published week is replayed from its release.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dpflow.accounting.costs.noise import Gaussian
from dpflow.config import settings
from dpflow.exceptions import BudgetRefused, DpflowError, how_to_install, require
from dpflow.guard.plain import spend
from dpflow.guard.project import current_project, forget_projects, make_project_ledger
from dpflow.ledger.decisions.refusals import amounts_text
from dpflow.ledger.views import accounts, open_reservations
from dpflow.libraries import comes_from
from dpflow.starter.project import existing_ledger
from dpflow.starter.texts import fill

_KILLED = "active_customers in a killed worker"
_SOURCES = (Path(__file__).parents[1] / "examples", Path(__file__).parents[2])


def run_demo(say: Callable[[str], None]) -> dict[str, Any]:
    """Run the demo in this project, or in a new folder `dpflow-demo`.

    Args:
        say: Prints one paragraph.

    Returns:
        The guarantee, the published weeks, and the week that the budget halted with
        its refusal (None where no week was refused).

    Raises:
        DpflowError: If the examples or their data are not installed.
    """
    data = () if os.environ.get("DPFLOW_DATA") else ("lifetimes",)
    needed = ("opendp", "pandas", "matplotlib", *data)
    missing = ", ".join(name for name in needed if find_spec(name) is None)
    message = f"the demo needs {missing}; {how_to_install('examples')}."
    require(not missing, message, DpflowError)
    say(f"The project is in {enter_project()}.")
    if existing_ledger(settings()) is None:
        make_project_ledger(settings())
    policies, ledger = current_project().policies, current_project().ledger
    say(guarantee := policies.policy_for("cdnow").guarantee_sentence())
    say(f"A mistyped sigma is refused, uncharged: {_refuse_a_typo().message}")
    if all(charge.body["step"] != _KILLED for charge in open_reservations(ledger)):
        command = [sys.executable, "-c", fill("worker.py", step=_KILLED)]
        worker = subprocess.run(command, check=False)  # noqa: S603
        message = "the worker could not start its step. Run `dpflow demo` again."
        require(worker.returncode == -signal.SIGKILL, message, DpflowError)
    (view,) = [v for v in accounts(ledger, "cdnow") if v.kind == "dataset"]
    forfeited = amounts_text(view.forfeited)
    say(f"A worker was killed during a step. Its charge stays: forfeited {forfeited}.")
    say("Starting Prefect's server (about 15 seconds) ...")
    season = _run_weeks(say)
    forget_projects()
    return {
        "guarantee": guarantee,
        "forfeited": forfeited,
        "halted": season.halted,
        "published": season.published,
        "refusal": getattr(season.refusal, "message", None),
    }


def enter_project() -> Path:
    """Change to the project with the examples; copy them from the installation."""
    root = settings().root
    if not _has_examples(root):
        root = Path.cwd() / "dpflow-demo"
        source = next(filter(_has_examples, _SOURCES))
        ignored = shutil.ignore_patterns("__pycache__", "ledger.lock")
        for name in ("flows", "policies"):
            if not (root / name).exists():
                shutil.copytree(source / name, root / name, ignore=ignored)
        # The file marks the project's root.
        (root / "pyproject.toml").touch()
    os.chdir(root)
    sys.path.insert(0, str(root))
    return root


def _has_examples(folder: Path) -> bool:
    return (folder / "flows" / "weekly_report.py").is_file()


def _refuse_a_typo() -> BudgetRefused:
    """Return the refusal of a step whose sigma lacks two digits."""
    cost = Gaussian(sensitivity=1, sigma="0.21")
    step = "active_customers, sigma mistyped"
    try:
        with spend(dataset="cdnow", cost=cost, step=step, flow="weekly-report"):
            raise AssertionError
    except BudgetRefused as refusal:
        return refusal


def _run_weeks(say: Callable[[str], None]) -> Any:
    """Run the weekly report until its budget halts it, and print what it published."""
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "CRITICAL")
    if "PREFECT_API_URL" not in os.environ:
        home = str(settings().root / ".dpflow/prefect")
        os.environ.setdefault("PREFECT_HOME", home)
        os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
        os.environ.setdefault("DO_NOT_TRACK", "1")
    from flows import data, weekly_report  # noqa: PLC0415 (imports Prefect)

    spread = 1.96 * float(weekly_report.CUSTOMERS.sigma)

    def show(week: str) -> None:
        text = (weekly_report.REPORTS / f"{week}.json").read_text("utf-8")
        released = json.loads(text)["active_customers"]
        true = data.active_customers(data.purchases(week))
        say(f"{week}: {released} active customers, +- {spread:.0f} (true: {true})")

    with server_needed():
        season = asyncio.run(weekly_report.run_weeks(data.weeks(), show))
    weekly_report.draw_burn_down()
    return season


@contextmanager
def server_needed() -> Iterator[None]:
    """Replace the errors of Prefect's client by one plain error.

    Raises:
        DpflowError: If Prefect's server did not answer.
    """
    try:
        yield
    except Exception as error:
        # Prefect's client fails so, and with a RuntimeError if the server is late.
        late = type(error) is RuntimeError and "server" in str(error)
        if not late and not any(comes_from(error, n) for n in ("httpx", "prefect")):
            raise
        msg = (
            "the demo ended early: Prefect's server did not answer, as on a busy "
            "machine. Run `dpflow demo` again: published weeks cost nothing more."
        )
        raise DpflowError(msg) from error
