"""What every shared place of a witness must do, for the tests of each place."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dpflow.ledger.decision.office import Freeze

from dpflow.exceptions import (
    ConfigurationError,
    LedgerRolledBack,
    LedgerUnavailable,
    LedgerUnwitnessed,
)
from dpflow.ledger.audit.reconcile import compare, reconcile, trust
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.opening import create_ledger, open_ledger
from dpflow.ledger.witness.base import Line, Witness
from dpflow.ledger.witness.comparison import witness_at
from tests.ledger.processes import Child, Gate
from tests.ledger.support import granted, kinds, make_policy, read, sums, url
from tests.ledger.witness.accidents import copy_database, keep


def fresh_witness(setting: str, ledger: str) -> Witness:
    """Return the witness as another process would make it."""
    made = witness_at(setting, "sqlite:///ledger.db")
    assert made is not None
    return made(ledger)


def witness_of(ledger: Ledger) -> Witness:
    """Return the witness of a ledger."""
    assert ledger.watch.witness is not None
    return ledger.watch.witness


def made_at(setting: str, folder: Path) -> Ledger:
    """Make a ledger in a folder with its witness at a place."""
    return create_ledger(url(folder / "ledger.db"), witness=setting)


def writes_before_the_body_starts(setting: str, folder: Path) -> None:
    """A reader of the place then sees the charge, and no settlement."""
    ledger = made_at(setting, folder)
    name = granted(ledger)
    (line,) = fresh_witness(setting, ledger.id).unseen().lines
    sql = "SELECT number, hash, charge FROM entry WHERE kind = 'reserve'"
    assert read(Path(ledger.place), sql) == [(line.number, line.hash, line.charge)]
    ledger.settle(name)
    assert fresh_witness(setting, ledger.id).all_lines() == (line,)


def refuses_a_ledger_that_was_never_enrolled(setting: str, folder: Path) -> None:
    """A missing witness fails closed; `trust` begins it, once."""
    path = url(folder / "ledger.db")
    create_ledger(path, witness="none").close()
    ledger = open_ledger(path, witness=setting)
    with pytest.raises(LedgerUnwitnessed, match="dpflow ledger trust"):
        granted(ledger)
    assert kinds(folder / "ledger.db") == []
    trust(ledger)
    granted(ledger)
    with pytest.raises(ConfigurationError, match="already"):
        trust(ledger)


def gives_back_what_it_could_not_write(setting: str, folder: Path) -> None:
    """No body started; the step after it runs."""
    ledger = made_at(setting, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(witness_of(ledger), "write", _fail)
        with pytest.raises(LedgerUnavailable, match=r"does not answer: lost"):
            granted(ledger)
    granted(ledger)
    assert kinds(folder / "ledger.db") == ["open", "reserve", "void", "reserve"]


def refuses_when_it_cannot_be_read(setting: str, folder: Path) -> None:
    """The step does not run and nothing is charged."""
    ledger = made_at(setting, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(witness_of(ledger), "read", _fail)
        with pytest.raises(LedgerUnavailable, match=r"does not answer: lost"):
            granted(ledger)
    assert kinds(folder / "ledger.db") == []


def _fail(*_: object) -> None:
    raise OSError(errno.EIO, "lost")


def goes_on_after_a_repair(setting: str, folder: Path) -> None:
    """A new epoch begins; a copy from before it is refused for its epoch alone."""
    ledger = made_at(setting, folder)
    policy = make_policy(budget="{epsilon: 10}")
    path = folder / "ledger.db"
    granted(ledger, policies=[policy])
    copy_database(path, folder / "copy")
    granted(ledger, "0.5", policies=[policy])
    copy_database(folder / "copy", path)
    with pytest.raises(LedgerRolledBack):
        granted(ledger, policies=[policy])
    assert len(compare(ledger).losses) == 1
    reconcile(ledger, {"a": policy}, reason="test")
    assert compare(ledger).agrees
    assert sum(sums(path)) * 10 == 6
    granted(ledger, policies=[policy])
    other = open_ledger(url(path), witness=setting)
    granted(other, policies=[policy])
    granted(ledger, policies=[policy])
    copy_database(folder / "copy", path)
    with pytest.raises(LedgerRolledBack, match=r"had 0 repairs, .* says 1"):
        granted(other, policies=[policy])


def serves_processes_that_fork(setting: str, folder: Path) -> None:
    """Whatever the parent had open, and the parent goes on."""
    ledger = made_at(setting, folder)
    granted(ledger)
    assert Child(lambda say: say(granted(ledger))).end()[0] == 0
    granted(ledger)
    assert len(fresh_witness(setting, ledger.id).unseen().lines) == 3


def loses_no_line_of_many_writers(setting: str, folder: Path) -> None:
    """Readers that come in between skip none, and compaction drops none of them."""
    ledger = made_at(setting, folder)
    gate = Gate()

    def teller(number: int) -> Child:
        def tell(say: Callable[[str], None]) -> None:
            mine = fresh_witness(setting, ledger.id)
            gate.wait()
            for n in range(1, 9):
                mine.accept(mine.unseen())
                mine.append([line(n, f"a{number}"), line(n, f"b{number}")])

        return Child(tell)

    children = [teller(number) for number in range(3)]
    gate.open()
    reader, lines = fresh_witness(setting, ledger.id), list[Line]()
    while len(lines) < 48:
        new = reader.unseen()
        reader.accept(new)
        lines += new.lines
    assert [child.end() for child in children] == [(0, [])] * 3
    assert reader.unseen().lines == ()
    for name in ("a0", "b0", "a1", "b1", "a2", "b2"):
        mine = [line.number for line in lines if name in line.books]
        assert sorted(mine) == list(range(1, 9))


def notices_damage(setting: str, folder: Path) -> None:
    """A line that does not fit its checksum is no line."""
    ledger = made_at(setting, folder)
    witness_of(ledger).write(["no line at all"], None)
    with pytest.raises(Exception, match="does not fit the ledger and its checksum"):
        granted(ledger)


def compacts_and_keeps_what_counts(setting: str, folder: Path) -> None:
    """The newest line of each account, decisions, and the last; who runs reads all."""
    ledger = made_at(setting, folder)
    with pytest.MonkeyPatch.context() as patch:
        keep(10, patch)
        granted(ledger, policies=[make_policy("first")])
        ledger.ask(Freeze(book="first", reason="test"))
        for number in range(60):
            granted(ledger, "1e-6")
            fresh = fresh_witness(setting, ledger.id)
            lines = fresh.unseen().lines
            assert len(lines) <= 25
            assert [line.kind for line in lines][: number + 2][:2] == [
                "reserve",
                "freeze",
            ]
            assert {name for line in lines for name in line.used} == {"first#1", "a#1"}
        granted(open_ledger(url(folder / "ledger.db"), witness=setting))
        assert compare(ledger).agrees


CONTRACT = [
    writes_before_the_body_starts,
    refuses_a_ledger_that_was_never_enrolled,
    gives_back_what_it_could_not_write,
    refuses_when_it_cannot_be_read,
    goes_on_after_a_repair,
    serves_processes_that_fork,
    loses_no_line_of_many_writers,
    compacts_and_keeps_what_counts,
    notices_damage,
]


def line(number: int, book: str = "a", **fields: Any) -> Line:
    """Make a line."""
    values = {
        "hash": f"{number:064x}",
        "kind": "reserve",
        "charge": None,
        "used": {f"{book}#1": (number,)},
        "amounts": {f"{book}#1": (1,)},
    }
    return Line(number=number, **{"books": (book,), **values, **fields})
