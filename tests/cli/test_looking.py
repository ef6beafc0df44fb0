"""Who may read a ledger and not write it sees all of it, and replays what is kept.

On a read-only mount, as another user, and on copies in a folder that cannot be written.
A copy whose newest charges are still in the log is refused.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import rich.progress  # noqa: F401 (before Python's own files are out of reach)

import dpflow.cli
import dpflow.forecast
import dpflow.ledger
from dpflow import guarded
from dpflow.config import LEDGER_VARIABLE, POLICIES_VARIABLE, WITNESS_VARIABLE
from dpflow.guard.project import forget_projects
from tests.cli.support import run
from tests.faults.mounting import read_only_view
from tests.ledger.processes import Child, Gate, die
from tests.projects import POLICY, TENTH, caught, fill_project
from tests.tables import read_tables

NOBODY = 65534
#: What only shows a ledger; the first few in every situation.
SHOWS = read_tables(__file__)
#: How many charges are in the ledger that is looked at, the newest in its log only.
CHARGES = 5
SITUATIONS = ("a read-only mount", "another user", "in use", "a copy")


@guarded(dataset="shop", cost=TENTH, release_key="count/{week}")
def count(week: int) -> str:
    """Release something."""
    return f"week {week}"


def become_nobody() -> None:
    """Give up root's rights, for good; Python itself may be root's alone to read."""
    for package in (dpflow.cli, dpflow.ledger, dpflow.forecast):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give a folder that other users may look into, with a project and a desk."""
    # The developer's own folder for such files may be closed to others.
    monkeypatch.setattr(tempfile, "tempdir", "/tmp")
    folder = Path(tempfile.mkdtemp())
    (folder / "desk").mkdir()
    (folder / "project").mkdir()
    monkeypatch.setenv(WITNESS_VARIABLE, str(folder / "witness"))
    monkeypatch.setenv("HOME", str(folder / "desk"))
    monkeypatch.setenv("MPLCONFIGDIR", str(folder / "desk"))
    for name in (LEDGER_VARIABLE, POLICIES_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    fill_project(folder / "project", POLICY)
    monkeypatch.chdir(folder / "project")
    yield folder
    forget_projects()
    monkeypatch.chdir("/")
    shutil.rmtree(folder)


def charge_and_crash(say: Callable[[str], object]) -> None:
    """Charge, end well, charge again and die: the newest charges are in the log."""
    for week in range(1, CHARGES):
        count(week)
    forget_projects()
    count(CHARGES)
    die()


def hand_over(folder: Path) -> None:
    """Let all users read a folder, and write to the desk only."""
    for item in (folder, *folder.rglob("*")):
        item.chmod(0o755 if item.is_dir() else 0o644)
    (folder / "desk").chmod(0o777)


@contextmanager
def situation(name: str, place: Path) -> Iterator[Path]:
    """Give the project as a user sees it who may not write; chdir there."""
    project = place / "project"
    ledger = project / ".dpflow" / "ledger.db"
    assert Child(charge_and_crash).end()[0] < 0
    hand_over(place)
    if name == "a copy":
        # Whole: the log is folded in, and no other file is there.
        count(CHARGES)
        forget_projects()
        assert not Path(f"{ledger}-wal").exists()
        Path(f"{ledger}.lock").unlink()
    elif name == "a copy of all":
        assert Path(f"{ledger}-wal").stat().st_size > 0
        Path(f"{ledger}-shm").unlink()
        Path(f"{ledger}.lock").unlink()
    hand_over(place)
    if name == "in use":
        with used(place):
            yield project
    elif name == "a read-only mount":
        with read_only_view(project, place / "view") as view:
            yield view or project
    else:
        yield project


@contextmanager
def used(place: Path) -> Iterator[None]:
    """Let another process have the ledger open, with its newest charge in the log."""
    gate = Gate()

    def use(say: Callable[[str], object]) -> None:
        count(CHARGES + 1)
        hand_over(place)
        say("charged")
        gate.wait()

    child = Child(use)
    assert child.line() == "charged"
    try:
        yield
    finally:
        gate.open()
        assert child.end() == (0, [])


def seen_by(name: str, place: Path, look: Callable[[], Any]) -> Any:
    """Return what a user sees who may not write, and check that nothing was."""
    with situation(name, place) as there:

        def tell(say: Callable[[str], object]) -> None:
            forget_projects()
            os.chdir(there)
            if name != "a read-only mount" or there == place / "project":
                become_nobody()
            say(json.dumps(look()))

        before = files(place / "project"), files(place / "witness")
        code, lines = Child(tell).end()
        assert code == 0, "\n".join(lines)
        assert before == (files(place / "project"), files(place / "witness"))
    return json.loads(lines[0])


def files(folder: Path) -> dict[str, tuple[int, int]]:
    """Return all that lies in a folder, with its size and when it was changed."""
    result = {}
    for item in folder.rglob("*"):
        status = item.stat()
        changed = 0 if item.name.endswith("-shm") else status.st_mtime_ns
        result[str(item)] = (status.st_size, changed)
    return result


def shown(place: Path, command: str) -> tuple[int, str, str]:
    """Run a command; return its exit code and what it said."""
    words = [word.format(desk=place / "desk") for word in command.split()]
    result = run(*words, "--json")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.promise("read-only")
@pytest.mark.parametrize("name", SITUATIONS)
def test_looking_needs_no_right_to_write(place, name):
    """Every overview shows all charges, the newest included, and writes nothing.

    A replay charges nothing; a step that would draw is refused with what to do.
    """
    commands = SHOWS["few"]
    if name == "a read-only mount":
        commands = [*commands, *SHOWS["more"]]

    def look() -> tuple[list[Any], list[str], str]:
        answers = [shown(place, each) for each in commands]
        forget_projects()
        values = [count(week) for week in range(1, CHARGES + 1)]
        return answers, values, caught(lambda: count(CHARGES + 2)).message

    answers, values, message = seen_by(name, place, look)
    for command, (code, _, stderr) in zip(commands, answers, strict=True):
        assert (code, stderr) == (0, ""), (command, stderr)
    texts = [json.loads(text) for _, text, _ in answers[: len(SHOWS["few"])]]
    status, history, releases, verified, reconciled, backup = texts
    charges = CHARGES + (name == "in use")
    assert [e["kind"] for e in history["entries"]].count("settle") == charges
    assert len(releases["releases"]) == charges
    (standing,) = status["datasets"]
    (account,) = (a for a in standing["standing"]["accounts"] if a["kind"] == "dataset")
    assert account["spent"]["epsilon"] == f"0.{charges}"
    assert verified["fine"]
    assert "agrees" in verified["witness"]
    assert reconciled["agrees"]
    assert backup["entries"] == 2 * charges + 1
    assert values == [f"week {week}" for week in range(1, CHARGES + 1)]
    assert "may be read here and not written" in message
    assert "the step did not run" in message


@pytest.mark.promise("read-only")
def test_a_log_without_its_index_is_no_ledger_to_read(place):
    """Its newest charges would be missing; the error says where a copy is read."""
    code, _, stderr = seen_by("a copy of all", place, lambda: shown(place, "status"))
    assert code == 1
    assert "its newest charges are in" in stderr
    assert "Copy ledger.db* to a folder that can be written" in stderr


@pytest.mark.promise("read-only")
@pytest.mark.parametrize("end", ["ledger.db", "ledger.db-wal", ""])
def test_a_file_without_the_right_to_read_is_an_error(place, end):
    """No part of a ledger is missing in silence, least of all the log; none is made."""

    def tell(say: Callable[[str], object]) -> None:
        become_nobody()
        say(json.dumps([shown(place, each) for each in ("status", "ledger init")]))

    with situation("another user", place) as project:
        (project / ".dpflow" / end).chmod(0o600)
        code, lines = Child(tell).end()
    assert code == 0, "\n".join(lines)
    looked, made = json.loads(lines[0])
    assert (looked[0], made[0]) == (1, 1)
    assert "Permission denied" in looked[2]
    assert "ask its owner" in looked[2]
