"""The witness file keeps each line, from any process and through any accident."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpflow.exceptions import (
    ConfigurationError,
    LedgerCorrupt,
    LedgerRolledBack,
    LedgerUnavailable,
    LedgerUnwitnessed,
)
from dpflow.ledger.opening import create_ledger, open_ledger
from dpflow.ledger.requests import Granted
from dpflow.ledger.witness import base
from dpflow.ledger.witness import file as witness_module
from dpflow.ledger.witness.base import End, Line, Seen, Witness
from dpflow.ledger.witness.comparison import witness_at
from dpflow.ledger.witness.file import FileWitness
from dpflow.locks import FileLock
from tests.ledger.processes import Child, Gate
from tests.ledger.support import (
    edit,
    granted,
    kinds,
    make_policy,
    new_ledger,
    request,
    state_of,
    sums,
    url,
)
from tests.ledger.witness.accidents import keep
from tests.ledger.witness.witness_contract import CONTRACT, line

pytestmark = pytest.mark.quick

ID = "0" * 31 + "1"


def fresh(witness: Witness) -> Witness:
    """Return the same witness as another process would make it."""
    return FileWitness(file_of(witness), witness.ledger)


def file_of(witness: Witness | None) -> Path:
    """Return the file of a witness."""
    assert witness is not None
    return Path(witness.place)


@pytest.fixture
def witness(tmp_path: Path) -> Witness:
    """Return a witness that has seen nothing."""
    result = FileWitness(tmp_path / "state" / f"{ID}.witness", ID)
    result.enrol(0, [])
    return result


# The file


@given(st.integers(0, 200), st.integers(1, 255))
def test_any_damage_to_a_line_is_noticed(at, flip):
    """The checksum is over the whole line."""
    data = bytearray(line(3).to_text(ID).encode())
    data[at % len(data)] ^= flip
    with pytest.raises(ValueError, match="checksum"):
        Line.from_text(data.decode("latin-1"), ID)


def test_written_lines_are_read_by_others(witness):
    """Once by each: what was compared is not read again."""
    other = fresh(witness)
    witness.append([line(1), line(2)])
    first = other.unseen()
    assert first.lines == (line(1), line(2))
    assert other.unseen().lines == first.lines
    other.accept(first)
    assert other.unseen().lines == ()
    witness.append([line(3)])
    assert other.unseen().lines == (line(3),)


def test_another_file_with_the_same_number_is_read_from_its_beginning(
    witness, monkeypatch
):
    """File systems give the number of a removed file to the next one."""
    real = witness_module.signature
    monkeypatch.setattr(
        witness_module, "signature", lambda status: (1, 1, *real(status)[2:])
    )
    witness.accept(witness.unseen())
    witness.enrol(1, [line(seq) for seq in range(1, 4)], anew=True)
    assert len(witness.unseen().lines) == 3


def test_a_line_that_names_an_account_hides_no_use_of_it(witness, monkeypatch):
    """Compaction keeps the newest use, and so does what is remembered of the lines."""
    keep(1, monkeypatch)
    use = line(1)._replace(kind="settle", used={"a#1": (5, 0)})
    named = line(2)._replace(kind="tighten", used={"a#1": ()})
    other = line(3)._replace(kind="settle", used={"b#1": (1, 0)})
    assert use in base.compacted([use, named, other])
    seen = Seen()
    seen.note([use, named, other], End(b"", 0, 0))
    assert seen.newest["account/a#1"] == use.number


def test_part_of_a_line_is_ignored_and_cut(witness):
    """Also one that is longer than a block."""
    witness.append([line(1)])
    for length in (1, 40, 9000):
        with file_of(witness).open("ab") as file:
            file.write(b"x" * length)
        assert fresh(witness).unseen().lines[-1].number >= 1
        witness.append([line(length)])
        assert fresh(witness).unseen().lines[-1].number == length


def test_beginning_twice_is_refused_and_beginning_anew_keeps_the_old(witness):
    """What was witnessed is never lost."""
    witness.append([line(1)])
    content = file_of(witness).read_text()
    with pytest.raises(ConfigurationError):
        witness.enrol(0, [])
    witness.enrol(1, [line(2)], anew=True)
    other = fresh(witness)
    assert other.unseen().lines == (line(2),)
    assert other.epoch == 1
    assert file_of(witness).with_name(f"{ID}.witness.1").read_text() == content


def test_beginning_anew_waits_for_a_writer(witness, monkeypatch):
    """One that compacts the old file would put that in the place of the new one."""
    monkeypatch.setattr(witness_module, "_LOCK_SECONDS", 0.1)

    def begin_meanwhile(_: int) -> None:
        with pytest.raises(LedgerUnavailable):
            fresh(witness).enrol(1, [], anew=True)

    FileLock(file_of(witness), os.O_RDWR).run(begin_meanwhile, 0.1)
    fresh(witness).enrol(1, [], anew=True)
    witness.unseen()
    assert witness.epoch == 1


def test_a_write_within_a_write_does_not_take_its_lock(witness, monkeypatch):
    """A signal's handler may ask in the thread that writes just now."""
    monkeypatch.setattr(witness_module, "_LOCK_SECONDS", 0.1)
    real = witness_module.write

    def interrupted(descriptor: int, data: bytes) -> None:
        monkeypatch.setattr(witness_module, "write", real)
        with pytest.raises(LedgerUnavailable):
            witness.append([line(2)])
        real(descriptor, data)

    monkeypatch.setattr(witness_module, "write", interrupted)
    witness.append([line(1)])
    assert fresh(witness).unseen().lines == (line(1),)


def test_the_file_is_for_its_owner_only(witness):
    """The file names all datasets."""
    assert file_of(witness).stat().st_mode & 0o077 == 0
    assert file_of(witness).parent.stat().st_mode & 0o077 == 0


def test_lines_that_were_not_compared_are_never_dropped(witness, monkeypatch):
    """Another process has written them meanwhile."""
    keep(0, monkeypatch)
    witness.accept(witness.unseen())
    fresh(witness).append([line(number) for number in range(1, 6)])
    witness.append([line(6)])
    assert len(witness.unseen().lines) == 6


def test_a_file_that_grew_large_is_rewritten_at_a_line(witness, monkeypatch):
    """A process that has read all rewrites it; a failure loses no line."""
    keep(5, monkeypatch)
    witness.accept(witness.unseen())
    witness.append([line(number) for number in range(1, 9)])
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", _full)
        witness.append([line(number) for number in range(9, 30)])
    assert len(fresh(witness).unseen().lines) == 29
    witness.append([line(30)])
    reader = fresh(witness)
    assert [each.number for each in reader.unseen().lines] == [*range(26, 31)]
    witness.append([line(31)])
    assert [each.number for each in witness.unseen().lines] == [*range(26, 32)]


def _full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_an_open_file_that_is_removed_or_replaced_is_noticed(witness, tmp_path):
    """No line goes into a file without a reader."""
    witness.accept(witness.unseen())
    witness.append([line(1)])
    kept = tmp_path / "kept"
    file_of(witness).rename(kept)
    with pytest.raises(LedgerUnwitnessed):
        witness.append([line(2)])
    shutil.copy(kept, file_of(witness))
    witness.append([line(2)])
    assert witness.unseen().lines == (line(2),)
    assert fresh(witness).unseen().lines == (line(1), line(2))
    assert kept.read_text().count("\n") == 2


def test_many_processes_write_and_compact_and_nothing_is_lost(witness, monkeypatch):
    """The newest line of each account is there."""
    keep(5, monkeypatch)
    gate = Gate()

    def teller(number: int) -> Child:
        def tell(say) -> None:
            mine = fresh(witness)
            gate.wait()
            for seq in range(1, 60):
                mine.accept(mine.unseen())
                mine.append([line(seq, f"a{number}")])

        return Child(tell)

    children = [teller(number) for number in range(4)]
    gate.open()
    assert [child.end() for child in children] == [(0, [])] * 4
    newest = {each.books[0]: each.number for each in fresh(witness).all_lines()}
    assert newest == {f"a{number}": 59 for number in range(4)}


# The ledger and its witness


@pytest.mark.parametrize("promise", CONTRACT)
def test_a_folder_keeps_a_witness(
    promise: Callable[[str, Path], None], tmp_path: Path
) -> None:
    """Each promise of the contract."""
    promise(str(tmp_path / "w"), tmp_path)


@pytest.mark.parametrize("call", ["write", "sync"])
def test_a_witness_that_cannot_be_written_gives_the_charge_back(
    tmp_path, monkeypatch, call
):
    """No body started; the next step, with room again, runs."""
    ledger = new_ledger(tmp_path)
    first = granted(ledger)

    with monkeypatch.context() as patch:
        patch.setattr(f"dpflow.ledger.witness.file.{call}", _full)
        with pytest.raises(LedgerUnavailable, match="No space left"):
            granted(ledger)
    path = Path(ledger.place)
    assert kinds(path) == ["open", "reserve", "reserve", "void"]
    assert state_of(path, first) == "open"
    granted(ledger)
    opened = open_ledger(url(path))
    granted(opened)
    assert sums(path)[1] * 10 == 3


def test_a_witness_that_cannot_be_read_fails_closed(tmp_path):
    """Its folder is another file."""
    ledger = new_ledger(tmp_path)
    (tmp_path / "file").touch()
    place = url(Path(ledger.place))
    opened = open_ledger(place, witness=str(tmp_path / "file"))
    with pytest.raises(LedgerUnavailable, match="does not answer"):
        granted(opened)
    with pytest.raises(LedgerUnavailable, match="does not answer"):
        create_ledger(f"{place}2", witness=str(tmp_path / "file"))
    # No ledger is made that would lack its witness.
    assert not Path(f"{ledger.place}2").exists()


# What the check costs, and what it sees besides


def test_many_lines_are_compared_all_the_same(tmp_path: Path) -> None:
    """More than are loaded with a decision; and one of them is missing."""
    ledger = new_ledger(tmp_path)
    names = [granted(ledger, "1e-6") for _ in range(30)]
    path = Path(ledger.place)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpflow.ledger.witness.rollback_check.AT_ONCE", 7)
        granted(open_ledger(url(path)), "1e-6")
        sql = "DELETE FROM entry WHERE charge = "
        edit(path, f"{sql}'{names[20]}'")
        with pytest.raises((LedgerRolledBack, LedgerCorrupt)):
            granted(open_ledger(url(path)), "1e-6")


def test_an_account_whose_newest_tag_was_taken_away_is_noticed(
    tmp_path: Path,
) -> None:
    """An older entry of its own would be taken for the newest one."""
    policy = make_policy(flows="{weekly: {epsilon: 0.5}}", other_flows="allow")
    ledger = new_ledger(tmp_path)
    path, share = Path(ledger.place), "a#1/flow/weekly"
    for _ in range(2):
        granted(ledger, policies=[policy], flow="weekly")
    granted(ledger, policies=[policy])
    charge = granted(ledger, "0.01", policies=[policy], flow="weekly")
    edit(path, f"DELETE FROM tag WHERE key = 'account/{share}' AND number > 3")
    moved = f"{share}.* is as entry 3 left it, . moved it since"
    with pytest.raises(LedgerCorrupt, match=moved):
        granted(ledger, policies=[policy], flow="weekly")
    with pytest.raises(LedgerCorrupt, match=moved):
        open_ledger(url(path)).forfeit(charge, reason="over")


def test_a_repeated_grant_is_witnessed_again(tmp_path: Path) -> None:
    """After a lost answer a process cannot know whether the line was written."""
    ledger = new_ledger(tmp_path)
    step = request(ledger)
    witness = ledger.watch.witness
    assert isinstance(witness, Witness)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(witness, "append", lambda _: None)
        assert isinstance(ledger.reserve(step), Granted)
    assert witness.all_lines() == ()
    assert isinstance(ledger.reserve(step), Granted)
    (line,) = witness.all_lines()
    assert line.charge == step.reservation


# Where it is


def file_at(setting: str | None, url: str = "sqlite:///ledger.db") -> str:
    """Return the place of a witness."""
    made = witness_at(setting, url)
    assert made is not None
    return made(ID).place


def test_the_default_is_the_users_state_folder(monkeypatch):
    """As the specification of such folders says."""
    monkeypatch.setenv("XDG_STATE_HOME", "/var/state")
    assert file_at(None) == f"/var/state/dpflow/{ID}.witness"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/me")
    assert file_at(None) == f"/home/me/.local/state/dpflow/{ID}.witness"


def test_it_can_be_elsewhere_or_waived_by_name():
    """A folder, or the word."""
    assert file_at("/mnt/w") == f"/mnt/w/{ID}.witness"
    assert witness_at("none", "postgresql://db/x") is None


def test_a_database_for_many_machines_has_no_default():
    """A file of one user would see nothing of what others charge."""
    with pytest.raises(ConfigurationError, match="is not set"):
        witness_at(None, "postgresql://db/x")
    assert file_at("/mnt/w", "postgresql://db/x") == f"/mnt/w/{ID}.witness"


def test_the_original_is_refused_while_a_copy_is_in_use(tmp_path: Path) -> None:
    """The second one to run is refused, and it may be the original."""
    place, witness = tmp_path / "ledger.db", str(tmp_path / "witness")
    create_ledger(url(place), witness=witness).close()
    copy = tmp_path / "copy.db"
    shutil.copy(place, copy)
    ledger = open_ledger(url(copy), witness=witness)
    granted(ledger)
    ledger.close()
    with pytest.raises(LedgerRolledBack, match="a copy of it is in use"):
        granted(open_ledger(url(place), witness=witness))
