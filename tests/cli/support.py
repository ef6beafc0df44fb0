"""A project in a folder of its own, and ways to run `dpflow` in it."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer import testing
from typer.testing import Result

import dpflow
from dpflow.accounting.costs.base import Cost
from dpflow.accounting.costs.noise import Gaussian
from dpflow.cli import app
from dpflow.config import settings
from dpflow.exceptions import BudgetRefused
from dpflow.ledger import Ledger, open_ledger
from dpflow.ledger.codec import encode
from dpflow.policy import load_policies
from tests.ledger.support import request
from tests.tables import read_tables

POLICIES: dict[str, str] = read_tables(__file__)
CDNOW, ADULT = POLICIES["cdnow"], POLICIES["adult"]
STEP = Gaussian(sensitivity=100, noise_multiplier=10)
ANSI = "\x1b["
_NOBODY = "0" * 32


@dataclass(frozen=True)
class Shop:
    """A project's folder."""

    root: Path

    @property
    def policies(self) -> Path:
        """The folder of its policies."""
        return self.root / "policies"

    def write(self, text: str, name: str = "cdnow.yaml") -> Path:
        """Write a policy file."""
        self.policies.mkdir(exist_ok=True)
        path = self.policies / name
        path.write_text(text)
        return path

    def ledger(self) -> Ledger:
        """Open its ledger."""
        setup = settings()
        return open_ledger(setup.ledger_url, policies=setup.policies)

    def reserve(
        self, cost: Cost = STEP, *, dataset: str = "cdnow", key: str = "", **step: Any
    ) -> str:
        """Reserve a step; a refusal is journaled and raised."""
        usual = {"step": "weekly_revenue", "flow": "weekly-report", "owner": _NOBODY}
        policies = [load_policies(self.policies)[dataset]]
        with contextlib.closing(self.ledger()) as ledger:
            fields = {"flow_run": uuid.uuid4().hex, **usual, **step}
            made = request(ledger, cost, policies=policies, key=key or None, **fields)
            ledger.reserve(made)
        return made.reservation

    def charge(
        self,
        cost: Cost = STEP,
        outcome: str = "completed",
        noise: str = "opendp",
        **step: Any,
    ) -> None:
        """Reserve and settle a step."""
        reservation = self.reserve(cost, **step)
        body = {"error_type": "ValueError"} if outcome == "failed" else {}
        body |= {"noise": noise}
        value = encode(1.5) if step.get("key") else None
        with contextlib.closing(self.ledger()) as ledger:
            ledger.settle(reservation, outcome=outcome, body=body, value=value)

    def refuse(self, cost: Cost, **step: Any) -> BudgetRefused:
        """Ask for more than fits."""
        try:
            self.reserve(cost, **step)
        except BudgetRefused as refusal:
            return refusal
        msg = "the step was granted"
        raise AssertionError(msg)


# Typer's runner makes all commands anew at each call; it spends half its time so.
testing._get_command = functools.cache(testing._get_command)


def run(*arguments: str) -> Result:
    """Run a command in this process."""
    return testing.CliRunner().invoke(app, list(arguments))


def run_fine(*arguments: str) -> str:
    """Run a command that must succeed without a word on standard error."""
    result = run(*arguments)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return result.stdout


def run_json(*arguments: str, exit_code: int = 0) -> Any:
    """Run a command with --json and read what it prints."""
    result = run(*arguments, "--json")
    assert exit_code == result.exit_code, result.output
    return json.loads(result.stdout)


def run_process(
    *arguments: str, code: str | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run `dpflow`, or some code, in a Python of its own."""
    how = ["-m", "dpflow"] if code is None else ["-c", code]
    done = subprocess.run(
        [sys.executable, *how, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=_environment() | environment,
    )
    done.stderr = without_place_warning(done.stderr)
    return done


def run_terminal(*arguments: str, columns: int) -> str:
    """Run `dpflow` in a terminal of this width; return its text."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    command = [sys.executable, "-m", "dpflow", *arguments]
    world = _environment() | {"TERM": "xterm-256color"}
    streams: Any = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
    with subprocess.Popen(command, env=world, **streams):
        os.close(theirs)
        shown = b""
        with os.fdopen(ours, "rb", 0) as reading, contextlib.suppress(OSError):
            while part := reading.read(65536):
                shown += part
    return without_place_warning(shown.decode().replace("\r\n", "\n"))


def without_place_warning(text: str) -> str:
    """Remove the one line that warns of a folder for tests that will not last."""
    pattern = r"^the ledger .* gone with the container or at the next boot, .*\n"
    return re.sub(pattern, "", text, count=1, flags=re.MULTILINE)


def without_colour(text: str) -> str:
    """Remove what colours a terminal's text."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def _environment() -> dict[str, str]:
    root = str(Path(dpflow.__file__).parents[1])
    kept = {k: v for k, v in os.environ.items() if k not in {"COLUMNS", "LINES"}}
    return kept | {"PYTHONPATH": root}
