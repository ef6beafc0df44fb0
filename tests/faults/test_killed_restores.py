"""A restore and a repair that die at any line: a step is refused, or all is charged.

Without a witness nothing but the replaced file knows what a backup lacks, so the backup
must never stand in its place alone.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from dpflow.exceptions import LedgerCorrupt, LedgerError
from dpflow.ledger import opening
from dpflow.ledger.audit import restores
from dpflow.ledger.audit.copies import backup
from dpflow.ledger.audit.reconcile import reconcile
from dpflow.ledger.opening import create_ledger, open_ledger
from tests.faults.drivers import FaultySqlite
from tests.ledger.processes import Child, die, dying
from tests.ledger.support import audit, charged, granted, make_policy, sums, url
from tests.ledger.support import put_back as replace_by_copy

POLICY = make_policy(budget="{epsilon: 100}")
TENTH, DIED = Fraction(1, 10), "the disk died"
#: How many steps the backup knows, and how many ran.
KNOWN, RAN = 3, 8
#: Where a line is a point to die at.
PLACES = tuple(
    f"/ledger/audit/{name}.py" for name in ("copies", "restores", "reconcile")
)
#: More than there are; the tests check that it is.
MOST = 1500


def charge(
    path: Path, number: int, witness: str, then: Callable[[], None] = lambda: None
) -> None:
    """Charge some steps, then do something before the ledger is closed."""
    with closing(open_ledger(url(path), witness=witness)) as ledger:
        for _ in range(number):
            charged(ledger, "0.1", policies=[POLICY])
        then()


@pytest.fixture
def before(tmp_path: Path) -> Path:
    """Give a folder with a ledger, a backup that lacks charges, and a witness.

    The newest charges are in the ledger's log only: who charged them died.
    """
    folder, witness = tmp_path / "before", str(tmp_path / "before" / "witness")
    folder.mkdir()
    path = folder / "ledger.db"
    create_ledger(url(path), witness=witness).close()
    charge(path, KNOWN, witness)
    with closing(open_ledger(url(path), witness=witness)) as ledger:
        backup(ledger, folder / "kept.db")
    charge(path, 3, witness)
    crash = lambda _: charge(path, RAN - KNOWN - 3, witness, die)
    assert Child(crash).end()[0] < 0
    assert Path(f"{path}-wal").stat().st_size > 0
    return folder


def put_back(folder: Path, witness: str) -> None:
    """Restore the backup."""
    at = url(folder / "ledger.db")
    restores.restore(folder / "kept.db", at, reason=DIED, witness=witness)


def repair(folder: Path, witness: str) -> None:
    """Reconcile the ledger with its witness."""
    with closing(open_ledger(url(folder / "ledger.db"), witness=witness)) as ledger:
        reconcile(ledger, reason=DIED)


def deaths(before: Path, act: Callable[[Path], None], step: int) -> Iterator[Path]:
    """Yield what the death of a process leaves behind: at every so manieth line."""
    for number in range(1, MOST, step):
        folder = before.with_name(f"at-{number}")
        shutil.copytree(before, folder)

        def run(_: object, folder: Path = folder, number: int = number) -> None:
            line = dying(number - 1)

            def trace(frame: FrameType, event: str, _: Any) -> Any:
                if not frame.f_code.co_filename.endswith(PLACES):
                    return None
                if event == "line":
                    line(event)
                return trace

            sys.settrace(trace)
            act(folder)
            sys.settrace(None)

        code, lines = Child(run).end()
        if code == 0:
            return
        assert (code, lines) == (-9, []), lines
        yield folder
        shutil.rmtree(folder)
    pytest.fail("there are more lines than were tried")


def next_step(folder: Path, witness: str) -> Fraction | None:
    """Ask for one more step; return what the ledger says was used, None if refused."""
    path = folder / "ledger.db"
    try:
        with closing(open_ledger(url(path), witness=witness)) as ledger:
            granted(ledger, "0.1", policies=[POLICY])
    except LedgerError as error:
        if not re.search("dpflow ledger|restore", error.message):
            raise
        return None
    audit(path)
    return sum(sums(path), Fraction(0))


@pytest.mark.promise("dead-restore")
@pytest.mark.parametrize("step", [97, pytest.param(1, marks=pytest.mark.slow)])
def test_a_restore_that_dies_never_forgets(before, step):
    """Without a witness: what stands there knows every charge, or no step runs.

    Restored once more, it charges all of it again and goes on.
    """
    granted_at = 0
    for folder in deaths(before, lambda folder: put_back(folder, "none"), step):
        used = next_step(folder, "none")
        granted_at += used is not None
        ran = RAN + (used is not None)
        assert used is None or used == ran * TENTH, folder
        put_back(folder, "none")
        charge(folder / "ledger.db", 1, "none")
        assert sum(sums(folder / "ledger.db")) >= (ran + 1) * TENTH, folder
    assert granted_at > 0


@pytest.mark.promise("dead-restore")
@pytest.mark.parametrize("act", [put_back, repair])
def test_with_a_witness_it_fails_closed(before, act):
    """A restore or a repair that died is refused until it is made good, or is whole."""

    def acting(folder: Path) -> None:
        if act is repair:
            replace_by_copy(folder / "ledger.db", folder / "kept.db")
        act(folder, str(folder / "witness"))

    for folder in deaths(before, acting, 79):
        used = next_step(folder, str(folder / "witness"))
        assert used is None or used == (RAN + 1) * TENTH, folder


@pytest.mark.promise("dead-restore")
@pytest.mark.parametrize("act", [put_back, repair])
def test_a_restore_that_died_before_its_last_rename_is_made_good(
    before, monkeypatch, act
):
    """Under a witness: its new epoch is known, and no step runs on the old file."""
    path, witness = before / "ledger.db", str(before / "witness")
    with monkeypatch.context() as patch:
        patch.setattr(restores, "replace_file", lambda *_: die())
        assert Child(lambda _: put_back(before, witness)).end() == (-9, [])
    assert sum(sums(path)) == RAN * TENTH
    assert next_step(before, witness) is None
    act(before, witness)
    used = next_step(before, witness)
    # Charges of the epoch that never began are charged twice, and none is lost.
    assert used is not None
    assert used >= (RAN + 1) * TENTH


def test_death_while_a_ledger_is_made(tmp_path):
    """Half a ledger is refused, and grants nothing."""
    place = tmp_path / "ledger.db"
    for number in range(MOST):

        def work(_: object, at: int = number) -> None:
            FaultySqlite.after = staticmethod(dying(at))
            opening.SqliteDatabase = FaultySqlite  # type: ignore[misc]
            create_ledger(url(place))

        Child(work).end()
        try:
            open_ledger(url(place)).close()
        except LedgerCorrupt:
            for item in tmp_path.iterdir():
                item.unlink()
        else:
            # It was killed after the last COMMIT, or not at all.
            break
    assert 10 < number < MOST - 1
