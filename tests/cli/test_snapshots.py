"""Output of every command, as text and as JSON: the files in tests/snapshots."""

from __future__ import annotations

import itertools
import os
import shlex
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dpflow import guarded
from dpflow.accounting.costs.noise import Gaussian
from dpflow.accounting.costs.notions import PureDP
from dpflow.guard.project import forget_projects
from tests.cli.support import ADULT, CDNOW, Shop, run
from tests.projects import act_as
from tests.snapshots import differences, settled

EVENTS = """\
dataset: events
unit: user-week
relation: add-or-remove
budget: {epsilon: 1}
filter: basic
partition: {by: week}
"""
pytestmark = pytest.mark.quick

WHY = "--reason 'a test'"
WEEKLY = "--cost 'Gaussian(sensitivity=100, sigma=1000)'"
TENTH = "--cost 'PureDP(epsilon=0.1)'"
#: Commands that only read, by the file that holds their output.
LOOKS = {
    "status": [
        "status",
        "status cdnow",
        "status --details",
        "status cdnow --next 3",
        "status events --part 2026-W05",
        "status cdnew",
        "status cdnow --json",
        "status events --json",
        "status --next 2 --json",
        "status --format prometheus",
    ],
    "history": [
        "history",
        "history cdnow --limit 3",
        "history cdnow --all-accounts --limit 4",
        "history --decisions",
        "history --decisions --limit 2",
        "history nowhere",
        "history cdnow --limit 7 --json",
        "history --decisions --limit 2 --json",
    ],
    "why": [
        "why cdnow",
        "why adult --by flow,step,week",
        "why adult --term 1",
        "why adult --term 7",
        "why events",
        "why cdnow --by what",
        "why cdnow --json",
    ],
    "forecast": [
        "forecast --like weekly-report",
        f"forecast cdnow {WEEKLY} --every week --from 2026-01-05 --theorems",
        "forecast cdnow --like weekly-report --runs 40 --from-full-budget",
        "forecast events --cost 'PureDP(epsilon=0.1)'",
        "forecast",
        f"forecast {WEEKLY}",
        f"forecast cdnow {WEEKLY} --from 2026-01-05",
        f"forecast cdnow {WEEKLY} --every 'blue moon'",
        f"forecast cdnow {WEEKLY} --every day --from soon",
        f"forecast cdnow {WEEKLY} --flow weekly",
        f"forecast adult {WEEKLY}",
        "forecast --like nobody",
        "forecast cdnow --cost 'Gausian(sigma=1)'",
        f"forecast cdnow {WEEKLY} --runs 40 --theorems --json",
    ],
    "policy": [
        "policy check --people 5000",
        "policy check policies/adult.yaml --cost 'Gaussian(sensitivity=1, sigma=20)'",
        "policy diff",
        "policy check policies/cdnow.yaml --json",
        "policy diff --json",
    ],
    "ledger": [
        "ledger info",
        "ledger verify",
        "ledger reservations",
        "ledger reconcile",
        "ledger info --json",
        "ledger verify --json",
        "ledger reservations --json",
        "ledger reconcile --json",
    ],
    "releases": [
        "releases list",
        "releases list --json",
        "releases show mean/5",
        "releases show mean/5 --json",
        "releases show mean/7",
    ],
}
#: Commands that write, each in a project of its own, in this order.
WRITES = {
    "apply": [
        "policy diff adult",
        "policy apply",
        f"policy apply adult {WHY} --json",
        f"policy apply adult --new-term {WHY}",
        f"policy apply --new-term {WHY}",
        "policy diff",
    ],
    "freeze": [
        f"freeze adult {WHY}",
        "status adult",
        f"freeze adult {WHY} --json",
        f"unfreeze adult {WHY}",
        f"unfreeze adult {WHY} --json",
        f"freeze adlut {WHY}",
        "freeze adult",
        "freeze adult --reason ' '",
        f"freeze events {WHY}",
    ],
    "charge": [
        f"ledger charge adult --cost 'Laplace(sensitivity=1, epsilon=0.25)' {WHY}",
        f"ledger charge adult {TENTH} {WHY} --evidence proof --json",
        f"ledger charge adult {TENTH} {WHY} --evidence proof",
        f"ledger charge adult {TENTH} {WHY} --evidence nowhere",
        f"ledger charge adult --cost 'PureDP(epsilon=2)' {WHY}",
        f"ledger charge events {TENTH} {WHY}",
        f"ledger charge events {TENTH} {WHY} --partition 2026-W05 --json",
        f"ledger charge nowhere {TENTH} {WHY}",
        f"ledger charge adult {TENTH} {WHY} --charge nowhere",
        f"ledger charge adult {TENTH} {WHY} --charge nowhere --flow f",
    ],
    "backup": [
        "ledger backup kept.db",
        "ledger backup again.db --json",
        "ledger backup kept.db",
        f"ledger restore kept.db {WHY} --json",
        f"ledger restore kept.db {WHY}",
        f"ledger restore nowhere.db {WHY}",
        "ledger restore kept.db",
        "ledger export --out journal.jsonl",
        "ledger export --format csv --out journal.csv --json",
        "ledger export --out journal.csv",
        "ledger verify journal.jsonl",
        "ledger verify journal.jsonl --json",
        "ledger sign",
        "ledger trust",
    ],
    "init": [
        "status",
        "ledger init",
        "ledger init",
        "status",
        "history",
        "releases list",
        "policy check",
        "init",
        "init --yes --dataset visits --json",
        "init --yes --dataset visits",
        "policy check policies/visits.yaml",
        "ledger roles",
    ],
    "plot": [
        "plot burndown cdnow --out b.png",
        "plot odometers --out o.svg --steps 10 --json",
        "plot odometers --out o.png --steps 1",
        "plot odometers --out o.gif",
        "plot odometers --out /proc/x/y.png",
        "plot burndown events --out b.svg",
        "report --verify",
        "report adult --out pages/adult.html",
        "report --out /proc/x/report.html",
    ],
}


class Clock(datetime):
    """A clock that goes on by a minute whenever it is asked."""

    minutes = itertools.count()

    @classmethod
    def now(cls, tz: Any = None) -> datetime:  # noqa: ARG003
        """Return the next minute."""
        start = datetime(2026, 1, 5, 6, tzinfo=UTC)
        return start + timedelta(minutes=next(cls.minutes))


@pytest.fixture(autouse=True)
def _ann(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the same person act at the same times."""
    act_as(monkeypatch, "ann")
    monkeypatch.setattr("dpflow.ledger.ledger.provenance", lambda: {"who": "bob"})
    monkeypatch.setattr("dpflow.ledger.ledger.writer", lambda: "bob@worker")
    monkeypatch.setattr(Clock, "minutes", itertools.count())
    monkeypatch.setattr("dpflow.ledger.ledger.datetime", Clock)


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


def said(shop: Shop, lines: list[str]) -> str:
    """Return what commands print, as a person sees it who types them."""
    told = []
    for line in lines:
        result = run(*shlex.split(line))
        assert result.exception is None or isinstance(result.exception, SystemExit)
        code = f"[{result.exit_code}]\n" if result.exit_code else ""
        # Usage is told by the library of commands; its last line is ours.
        errors = result.stderr.rpartition("\n\n")[2]
        told.append(f"$ dpflow {line}\n{result.stdout}{errors}{code}")
    return settled("\n".join(told), shop.root, os.environ["XDG_STATE_HOME"])


def test_what_commands_show(shop: Shop) -> None:
    """Text and JSON of all commands that only look, at a ledger with all there is."""
    year(shop)
    found = {name: said(shop, lines) for name, lines in LOOKS.items()}
    assert differences(found) == []


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
    assert differences({name: said(empty, WRITES[name])}) == []
