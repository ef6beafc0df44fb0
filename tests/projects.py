"""A project in a folder of its own, and what tests ask of its ledger."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from dpflow import Laplace, PureDP
from dpflow.config import LEDGER_VARIABLE, POLICIES_VARIABLE
from dpflow.guard.project import current_project, forget_projects
from dpflow.ledger import create_ledger, pin_ledger
from dpflow.ledger.provenance import provenance
from dpflow.ledger.views import accounts, history
from dpflow.ledger.views.accounts import AccountView
from dpflow.ledger.views.entries import JournalEntry

ROOT = Path(__file__).resolve().parent.parent

#: Epsilon 1 under the sum rule: ten charges of a tenth fit.
POLICY = """\
dataset: shop
unit: customer
relation: add-or-remove
budget: {epsilon: 1}
filter: basic
"""

#: A tenth of that budget, for bodies that stand for mechanisms of their own.
TENTH = PureDP(epsilon="0.1")
#: The same, drawn by `release`.
NOISY = Laplace(sensitivity=1, epsilon="0.1")


def make_project(folder: Path, monkeypatch: pytest.MonkeyPatch, *policies: str) -> Path:
    """Make a project with policies and a new, pinned ledger, and go there.

    Args:
        folder: An empty folder.
        monkeypatch: Goes back at the end of the test.
        *policies: YAML texts; default: `POLICY`.

    Returns:
        The folder.
    """
    fill_project(folder, *policies)
    monkeypatch.delenv(LEDGER_VARIABLE, raising=False)
    monkeypatch.delenv(POLICIES_VARIABLE, raising=False)
    monkeypatch.chdir(folder)
    forget_projects()
    return folder


def fill_project(folder: Path, *policies: str) -> None:
    """Make policies, ledger and pin in a folder."""
    (folder / "policies").mkdir()
    for number, text in enumerate(policies or (POLICY,)):
        (folder / "policies" / f"{number}.yaml").write_text(text, "utf-8")
    (folder / "pyproject.toml").touch()
    ledger = create_ledger(f"sqlite:///{ledger_file(folder)}")
    pin_ledger(ledger, folder / "policies")
    ledger.close()


def rewrite_policy(folder: Path, old: str, new: str) -> None:
    """Change one place of the first policy."""
    path = folder / "policies" / "0.yaml"
    text = path.read_text("utf-8")
    assert text.count(old) == 1, old
    path.write_text(text.replace(old, new), "utf-8")


def ledger_file(folder: Path) -> Path:
    """Return where the ledger of a project is."""
    return folder / ".dpflow" / "ledger.db"


@contextlib.contextmanager
def ledger_away(folder: Path) -> Iterator[None]:
    """Take the ledger's files away for the length of a block."""
    hide_ledger(folder)
    try:
        yield
    finally:
        bring_ledger_back(folder)


def hide_ledger(folder: Path) -> None:
    """Move the ledger's database files out of the way."""
    for name in _database_files(folder, "ledger.db"):
        name.rename(name.with_name(f"away-{name.name}"))


def bring_ledger_back(folder: Path) -> None:
    """Undo `hide_ledger`; whatever lies in the ledger's place is removed."""
    for name in _database_files(folder, "ledger.db"):
        name.unlink()
    for name in _database_files(folder, "away-ledger.db"):
        name.rename(name.with_name(name.name.removeprefix("away-")))


@contextlib.contextmanager
def locked_ledger(folder: Path) -> Iterator[None]:
    """Hold the ledger's lock, as another process might for too long."""
    database: Any = current_project().ledger.database
    patience, database.lock_seconds = database.lock_seconds, 0.1
    with Path(f"{ledger_file(folder)}.lock").open("r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            database.lock_seconds = patience


def _database_files(folder: Path, name: str) -> list[Path]:
    """Return the database with its log; the lock and the owners stay."""
    paths = [folder / ".dpflow" / f"{name}{end}" for end in ("", "-wal", "-shm")]
    return [path for path in paths if path.exists()]


def rows(folder: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Return every row of every table, and of every kind, read around dpflow."""
    uri = f"{ledger_file(folder).as_uri()}?mode=ro"
    with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
        result = connection.execute("SELECT name FROM sqlite_master WHERE type='table'")
        names = sorted(name for (name,) in result)
        return {
            name: sorted(connection.execute(f"SELECT * FROM {name}"), key=repr)
            for name in names
        }


def ledger_bytes(folder: Path) -> bytes:
    """Return all that lies in the ledger's folder, logs and locks included."""
    paths = [str(path) for path in (folder / ".dpflow").rglob("*") if path.is_file()]
    # In a process of its own: to open and close the files here would drop the locks
    # that SQLite and the owner of the reservations hold on them.
    result = subprocess.run(["cat", *paths], capture_output=True, check=True)
    return "".join(paths).encode() + result.stdout


def journal(dataset: str = "shop") -> list[JournalEntry]:
    """Return the journal of a dataset's account, oldest first."""
    items = history(current_project().ledger, dataset, limit=1000)
    return sorted(items, key=lambda entry: entry.seq)


def kinds(dataset: str = "shop") -> list[str]:
    """Return the kinds of those entries, without the one that opened the account."""
    return [entry.kind for entry in journal(dataset)][1:]


def outcome() -> Mapping[str, Any]:
    """Return what the journal says of the newest charge."""
    return journal()[-1].body


def account(dataset: str = "shop", kind: str = "dataset") -> AccountView:
    """Return one account of a dataset."""
    views = accounts(current_project().ledger, dataset)
    (result,) = [view for view in views if view.kind == kind]
    return result


def spent(dataset: str = "shop") -> str:
    """Return the epsilon that a dataset has spent under the sum rule."""
    return account(dataset).spent["epsilon"]


def held(dataset: str = "shop") -> str:
    """Return the epsilon that is reserved by living executions."""
    return account(dataset).reserved["epsilon"]


def run_python(script: str, *arguments: object, folder: Path | None = None) -> Any:
    """Run another Python to its end and return the JSON that it printed."""
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        cwd=folder,
        env={
            "PYTHONPATH": str(ROOT),
            "PATH": "/usr/bin:/bin",
            # Where this process has its witnesses of the ledgers.
            "XDG_STATE_HOME": os.environ["XDG_STATE_HOME"],
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def caught(call: Callable[[], object]) -> BaseException:
    """Return what a call raises, whatever it is."""
    try:
        call()
    except BaseException as error:
        return error
    return pytest.fail("nothing was raised")


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and every error behind it, those not shown included."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        waiting += [each.__cause__, each.__context__]
        waiting += getattr(each, "exceptions", ())


def traceback_of(error: BaseException, *, skip_frames: Iterable[str] = ()) -> str:
    """Return all text that an error carries: chain, notes, details, local variables.

    Args:
        error: The error, as the caller of a step caught it.
        skip_frames: Functions whose own variables hold what the test looks for.
    """
    parts = []
    for each in chain(error):
        parts += [repr(each), repr(each.args), repr(vars(each))]
        trace = each.__traceback__
        while trace is not None:
            frame = trace.tb_frame
            if frame.f_code.co_name not in skip_frames:
                parts += [repr(value) for value in frame.f_locals.values()]
            trace = trace.tb_next
    return "\n".join(parts)


def act_as(monkeypatch, name):
    """Let the journal record another operating-system user."""
    facts = provenance() | {"who": name}
    monkeypatch.setattr("dpflow.ledger.opening.provenance", lambda *_: facts)
