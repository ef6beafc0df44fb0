"""Output of every command and of the page: the files in tests/snapshots."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from html import unescape
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest

from dpflow import guarded
from dpflow.accounting.costs.noise import Gaussian
from dpflow.accounting.costs.notions import PureDP
from dpflow.accounting.costs.text import cost_from_text
from dpflow.exceptions import DpflowError
from dpflow.guard.project import forget_projects
from tests.cli.support import ADULT, CDNOW, POLICIES, Shop, run, run_fine
from tests.ledger.support import edit
from tests.projects import ROOT, act_as
from tests.sizes import SCALE
from tests.snapshots import commands, differences, settled

EVENTS = POLICIES["events"]
pytestmark = pytest.mark.quick

#: Files of commands that only read, and of those that write: they hold the commands.
LOOKS = ("status", "history", "why", "forecast", "policy", "ledger", "releases")
WRITES = (
    *("apply", "freeze", "charge", "backup", "restore", "init", "plot", "check"),
    *("access", "terms", "audit", "states", "forecasts", "withdraw", "registry"),
    *("revisions", "settings", "auto", "redraws", "entries", "damages", "paths"),
)
if SCALE < 1:
    # The quick tests take a third; each further Python that is tested takes another.
    WRITES = WRITES[sys.version_info.minor % 3 :: 3]


class Clock(datetime):
    """A clock that advances by a minute at each reading."""

    minutes = itertools.count()

    @classmethod
    def now(cls, tz: Any = None) -> datetime:  # noqa: ARG003
        """Return the next minute."""
        start = datetime(2026, 1, 5, 6, tzinfo=UTC)
        return start + timedelta(minutes=next(cls.minutes))


@pytest.fixture(autouse=True)
def _ann(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let the same person act at the same times."""
    act_as(monkeypatch, "ann")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr("dpflow.ledger.shell.provenance", lambda: {"who": "bob"})
    monkeypatch.setattr("dpflow.ledger.shell.writer", lambda: "bob@worker")
    monkeypatch.setattr(Clock, "minutes", itertools.count())
    for module in ("ledger.shell", "show.page.facts"):
        monkeypatch.setattr(f"dpflow.{module}.datetime", Clock)


def year(shop: Shop) -> None:
    """Let everything happen that a command can tell of."""
    run("policy", "apply", "--reason", "the first year")
    shop.write(EVENTS, "events.yaml")
    for week in range(14, 19):
        shop.charge(key=f"revenue/1997-W{week}")
    for _ in range(2):
        shop.refuse(Gaussian(sensitivity=100, noise_multiplier="0.1"))
    shop.charge(step="bare", noise="self-declared")
    shop.charge(step="broken", outcome="failed")
    shop.reserve(step="killed")
    shop.charge(PureDP(epsilon="0.25"), dataset="adult", flow=None, step="mean")
    shop.write(ADULT.replace("epsilon: 1", "epsilon: 0.5"), "adult.yaml")
    run("policy", "apply", "adult", "--reason", "less is enough")
    run("freeze", "adult", "--reason", "wrong sigma")
    run("unfreeze", "adult", "--reason", "it was right")
    shop.write(f"{ADULT}lifetime: {{epsilon: 3}}\n", "adult.yaml")
    run("policy", "apply", "adult", "--new-term", "--reason", "a new year")
    shop.charge(PureDP(epsilon="0.1"), dataset="adult", flow=None, step="mean")
    part = ("--partition", "2026-W05")
    run("ledger", "charge", "events", "--cost", "PureDP(epsilon=0.5)", *part,
        "--reason", "before dpflow")  # fmt: skip
    guarded(dataset="adult", cost=PureDP(epsilon="0.1"), release_key="mean/{week}")(
        mean
    )(5)
    forget_projects()
    shop.write(CDNOW.replace("epsilon: 3,", "epsilon: 4,"))


def mean(week: int) -> float:
    """Return a number that is public."""
    return week + 0.25


def text_of(page: str) -> str:
    """Return the text of a page: a line for each paragraph and each row of a table."""
    body = page.partition("<body>")[2].replace("\n", " ")
    rows = re.sub("</t[dh]>", "  ", body)
    lines = re.sub("<[^>]*>", "", re.sub("</(tr|p|li|h[1-6])>", "\n", rows)).split("\n")
    return "".join(f"{unescape(' '.join(line.split()))}\n" for line in lines)


def said(shop: Shop, name: str) -> str:
    """Return what the commands of a file print, as a person sees it who types them.

    A comment is printed as it is; `step` charges, `edit` changes the ledger by hand,
    and other programs are the shell's.
    """
    lines = []
    for line in commands(name):
        program, _, words = line.partition(" ")
        if program == "dpflow":
            words, _, file = words.partition(" > ")
            shown = dpflow(words)
            if file:
                (shop.root / file).write_text(shown, "utf-8")
                shown = ""
        elif program == "step":
            shown = step(shop, words)
        elif program == "edit":
            shown = edit(shop.root / ".dpflow" / "ledger.db", words) or ""
        else:
            shown = subprocess.check_output(line, shell=True, cwd=shop.root, text=True)
        lines.append(f"$ {line}\n{shown}")
    return settled("\n".join(lines), shop.root, os.environ["XDG_STATE_HOME"])


def dpflow(words: str) -> str:
    """Return what a command prints, with its exit code where it fails."""
    # A command is a process of its own, which reads what others wrote.
    result = run(*shlex.split(words))
    assert result.exception is None or isinstance(result.exception, SystemExit)
    code = f"[{result.exit_code}]\n" if result.exit_code else ""
    # Usage is told by the library of commands; its last line is ours.
    return f"{result.stdout}{result.stderr.rpartition(chr(10) * 2)[2]}{code}"


def step(shop: Shop, words: str) -> str:
    """Charge a step whose fields are words such as key=a; return its refusal."""
    fields: dict[str, Any] = dict(word.split("=", 1) for word in shlex.split(words))
    if "cost" in fields:
        fields["cost"] = cost_from_text(fields["cost"])
    if "part" in fields:
        fields["partitions"] = (fields.pop("part"),)
    if fields.get("flow") == "":
        fields["flow"] = None
    try:
        shop.charge(**fields)
    except DpflowError as refusal:
        return f"{refusal}\n"
    return ""


def test_what_commands_show(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Text and JSON of all commands that only look, at a ledger with all there is."""
    year(shop)
    texts = {name: said(shop, name) for name in LOOKS}
    monkeypatch.setattr("dpflow.show.page.stamp.datetime", Clock)
    run("report", "--verify", "--out", "page.html")
    page = (shop.root / "page.html").read_text("utf-8")
    texts["page"] = settled(text_of(page), shop.root)
    assert differences(texts) == []


def test_what_programs_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fields of the records behind `--json`, and the schema of policies."""
    site = ROOT / "docs" / "_site"
    monkeypatch.syspath_prepend(site)
    records = run_path(str(site / "write.py"))["_printed"]()
    schema = run_fine("policy", "schema")
    assert differences({"records": records, "policy_schema": schema}) == []


@pytest.mark.promise("hidden-field", "lost-releases")
@pytest.mark.parametrize("name", WRITES)
def test_what_commands_do(empty: Shop, name: str) -> None:
    """Text and JSON of commands that write, and of what they refuse."""
    if name != "init":
        assert run("ledger", "init").exit_code == 0
        empty.write(CDNOW)
        empty.write(ADULT, "adult.yaml")
        empty.write(EVENTS, "events.yaml")
        (empty.root / "proof").touch()
        empty.charge(key="revenue/1997-W14")
        empty.charge(PureDP(epsilon="0.1"), dataset="adult", flow=None)
    assert differences({name: said(empty, name)}) == []
