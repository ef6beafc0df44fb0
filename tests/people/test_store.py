"""The people's file: refuse what is old, foreign or damaged; forget nothing."""

from __future__ import annotations

import shutil
import stat
from unittest import mock

import numpy as np
import pytest

from dpflow import exceptions
from dpflow.ledger import Ledger
from dpflow.ledger.audit.reconcile import compare, reconcile
from dpflow.ledger.audit.verify import verify
from dpflow.locks import FileLock
from dpflow.people import PersonStore, store
from tests.ledger.support import entries, granted, new_ledger
from tests.people.places import BOUND, QUARTER, THREE, Place, store_of
from tests.sizes import spread

pytestmark = pytest.mark.quick

NO_ANSWER = exceptions.LedgerUnavailable("no answer", ledger="here")


@pytest.fixture
def place(tmp_path):
    """A new ledger, and no store yet."""
    return Place(tmp_path / "shop")


def test_charges_survive_reopening(place):
    """The next process sees each charge; unusable arrays and people charge nothing."""
    assert place.step(0.75, 0.5, 2.0) == [True, True, False]
    assert place.step(0.5, 0.49, 0.99) == [False, True, True]
    assert place.step(0.24, 0.02, 0.02) == [True, False, False]
    before = place.people.read_bytes()
    for shares, people in (([0.0] * 3, "ab"), ([0.0] * 3, "aab"), ([0.5], THREE)):
        with pytest.raises(exceptions.InvalidCost):
            place.step(*shares, people=[*people])
    assert place.people.read_bytes() == before


def test_a_store_is_made_once_and_by_the_charge_that_paid(place):
    """Without its file, and before the step that paid has made it, nothing is made."""
    with place.ledger() as ledger:
        first, second = (store_of(ledger, place.folder) for _ in range(2))
        with pytest.raises(exceptions.LedgerMissing):
            second.reserve(THREE, lambda _: np.zeros(3))
        first.reserve(THREE, lambda _: np.zeros(3))
        second.reserve(THREE, lambda _: np.zeros(3))
    place.people.unlink()
    with pytest.raises(exceptions.LedgerMissing, match="--new-term"):
        place.step(0.0, 0.0, 0.0)
    assert not any(place.folder.glob("*.people"))


@pytest.mark.promise("lost-store")
@pytest.mark.parametrize("witness", [None, "none"])
def test_a_restored_ledger_is_refused(tmp_path, witness):
    """By its witness; without one, for its history does not lead to the file."""
    place = Place(tmp_path / "shop", witness)
    place.step(0.5, 0.5, 0.5)
    for name in ("one", "two"):
        shutil.copy(place.file, tmp_path / name)
        place.step(0.1, 0.1, 0.1)
    shutil.copy(tmp_path / "one", place.file)
    with pytest.raises(
        exceptions.LedgerError, match="foreign copy" if witness else "witness"
    ):
        place.step(0.0, 0.0, 0.0)
    if witness:
        # As after a crash between file and row: the step's charge stays.
        shutil.copy(tmp_path / "two", place.file)
        assert place.step(0.35, 0.25, 0.0) == [False, True, True]


def test_a_copy_in_use_is_refused(place):
    """Of two copies that go on from one step, the second one draws nothing."""
    place.step(0.5, 0.5, 0.5)
    copy = place.folder.with_name("copy")
    shutil.copytree(place.folder, copy)
    with place.ledger() as ledger:
        slow = store_of(ledger, copy)

        def overtaken(_):
            assert place.step(0.4, 0.4, 0.4) == [True] * 3
            return np.zeros(3)

        with pytest.raises(exceptions.ReservationConflict, match="another copy"):
            slow.reserve(THREE, overtaken)
        with pytest.raises(exceptions.LedgerCorrupt, match="foreign copy"):
            store_of(ledger, copy).reserve(THREE, lambda _: np.zeros(3))
    assert place.step(0.2, 0.0, 0.0) == [False, True, True]


@pytest.mark.promise("lost-store")
def test_a_commit_that_comes_after_the_next_step_began_is_no_other_copy(place):
    """A database may commit for a process that died; the file has both charges."""
    place.step(0.0, 0.0, 0.0)
    with mock.patch.object(Ledger, "pay", side_effect=NO_ANSWER) as pay:
        for _ in range(2):
            with pytest.raises(exceptions.LedgerUnavailable, match="no answer"):
                place.step(0.25, 0.0, 0.0)
    with place.ledger() as ledger:

        def overtaken(_):
            ledger.pay(*pay.call_args_list[0].args, **pay.call_args_list[0].kwargs)
            return float(BOUND) * np.array([0.0, 0.25, 0.0])

        with pytest.raises(exceptions.ReservationConflict, match="went on"):
            store_of(ledger, place.folder).reserve(THREE, overtaken)
    assert place.step(0.51, 0.76, 0.0) == [False, False, True]
    assert place.step(0.49, 0.74, 0.0) == [True, True, True]


def test_a_charge_pays_for_one_step(place):
    """The files of two steps of one charge would look alike; a void one pays none."""
    with place.ledger() as ledger:
        once = store_of(ledger, place.folder)
        once.reserve(THREE, lambda _: np.zeros(3))
        with pytest.raises(exceptions.ReservationConflict, match="has paid"):
            once.reserve(THREE, lambda _: np.zeros(3))
        place.step(0.0, 0.0, 0.0)
        ledger.void(once._charge, reason="a mistake")
    with pytest.raises(exceptions.LedgerMissing):
        place.step(0.0, 0.0, 0.0)


@pytest.mark.promise("lost-store")
def test_a_ledger_that_forgot_a_row_alone_is_repaired(place, tmp_path):
    """A backup from between a charge and its row stops no other step for good."""
    place.step(0.0, 0.0, 0.0)
    with place.ledger() as ledger:
        paying = store_of(ledger, place.folder)
    shutil.copy(place.file, tmp_path / "backup")
    with place.ledger() as ledger:
        again = PersonStore(ledger, paying._charge, place.folder)
        again.reserve(THREE, lambda b: np.full(3, float(b.bound) * QUARTER))
    shutil.copy(tmp_path / "backup", place.file)
    with place.ledger() as ledger:
        assert reconcile(ledger, reason="restored")
        assert compare(ledger) == []
    assert place.step(0.7, 0.8, 0.0) == [True, False, True]


@pytest.mark.promise("lost-store")
def test_a_store_that_no_charge_paid_is_refused(place, tmp_path):
    """The file of another ledger, and a charge that took nothing, are no beginning."""
    other = Place(tmp_path / "other")
    other.step(0.0, 0.0, 0.0)
    with place.ledger() as ledger:
        paid, nothing = (store_of(ledger, place.folder) for _ in range(2))
        place.folder.mkdir()
        shutil.copy(other.people, paid.path)
        with pytest.raises(exceptions.LedgerError):
            paid.reserve(THREE, lambda _: np.zeros(3))
        paid.path.unlink()
        paid.reserve(THREE, lambda _: np.zeros(3))
        charges = [each._charge for each in (paid, nothing)]
        ledger.settle(charges[1])
        for account, charge, before, why in (
            ("shop#1", "unknown", charges[0], "no reservation unknown"),
            ("shop#1", charges[1], charges[0], "settled already"),
            ("shop#2", charges[0], None, "did not pay for the people"),
        ):
            with pytest.raises(exceptions.LedgerError, match=why):
                ledger.pay(account, charge, before=before)


def test_every_damaged_byte_is_noticed(place):
    """No flipped bit, cut or addition goes unnoticed."""
    place.step(0.5, 0.5, 0.5)
    generator, path = np.random.default_rng(3), place.people
    whole = path.read_bytes()
    flipped = [
        whole[:at] + bytes([whole[at] ^ (1 << generator.integers(8))]) + whole[at + 1 :]
        for at in range(len(whole))
    ]
    damaged = [whole[:at] for at in (0, 1, len(whole) // 2, len(whole) - 1)]
    damaged += [whole + b"\0", whole + whole, b"x" * len(whole)]
    with place.ledger() as ledger:
        one = store_of(ledger, place.folder)
        for contents in (*spread(flipped, 100), *damaged):
            path.write_bytes(contents)
            with pytest.raises(exceptions.LedgerCorrupt, match="damaged"):
                one.reserve(THREE, lambda _: np.zeros(3))
        path.write_bytes(whole)
        one.reserve(THREE, lambda _: np.zeros(3))


def test_one_process_holds_the_store(place, monkeypatch):
    """Another one waits for the lock and gives up."""
    place.step(0.0, 0.0, 0.0)
    monkeypatch.setattr(store, "_LOCK_SECONDS", 0)
    lock = FileLock(place.people.with_name(f"{place.people.name}.lock"))
    with pytest.raises(exceptions.LedgerUnavailable, match="cannot be used"):
        lock.run(lambda _: place.step(0.0, 0.0, 0.0), 0)


def test_a_write_that_fails_gives_no_mask(place):
    """No person is charged if the file cannot be written; all are if the row cannot."""
    place.step(0.0, 0.0, 0.0)
    blocked = place.people.with_name(f"{place.people.name}.new")
    # A folder in the way fails for every user, root included.
    blocked.mkdir()
    with pytest.raises(exceptions.LedgerUnavailable, match="no noise"):
        place.step(0.75, 0.75, 0.75)
    blocked.rmdir()
    assert place.step(0.5, 0.5, 0.5) == [True] * 3
    with (
        mock.patch.object(Ledger, "pay", side_effect=NO_ANSWER),
        pytest.raises(exceptions.LedgerUnavailable, match="no answer"),
    ):
        place.step(0.3, 0.3, 0.3)
    assert place.step(0.3, 0.1, 0.1) == [False, True, True]


def test_a_row_whose_commit_was_lost_is_sent_again(place, monkeypatch):
    """The second time it is there already, and the mask is given out."""
    transact = Ledger._transact_once

    def once(self, *how, again):
        decision, rows = transact(self, *how, again=again)
        if not again and decision.entries[0][0].kind == "pay":
            raise exceptions.LedgerUnavailable("lost", ledger="here")
        return decision, rows

    monkeypatch.setattr(Ledger, "_transact_once", once)
    with place.ledger() as ledger:
        for _ in range(2):
            used = store_of(ledger, place.folder)
            used.reserve(THREE, lambda _: np.full(3, float(BOUND) * QUARTER))
        assert [entry.kind for entry in entries(place.file)].count("pay") == 2
        assert ledger.watch.witness.read_all().people["shop#1"][1] == used._charge
    assert place.step(0.6, 0.5, 0.0) == [False, True, True]


def test_the_file_is_for_its_owner_only(place):
    """The people's file and its lock are readable by no other user."""
    place.step(0.5, 0.5, 0.5)
    assert stat.S_IMODE(place.folder.stat().st_mode) == 0o700
    for path in place.folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_an_account_without_budgets_of_people_has_no_store(tmp_path):
    """The charge of another filter paid for none."""
    ledger = new_ledger(tmp_path)
    charge = granted(ledger)
    with pytest.raises(exceptions.LedgerCorrupt, match="no budgets of people"):
        PersonStore(ledger, charge, tmp_path).reserve(THREE, lambda _: np.zeros(3))


@pytest.mark.promise("lost-store")
@pytest.mark.parametrize("repairs", [1, 2])
def test_a_store_that_was_restored_with_its_ledger_is_refused(place, tmp_path, repairs):
    """Charges of people that both forgot stay charged: only the newest file goes on.

    After a second repair the file stands for steps that people paid, of which no other
    line says anything.
    """
    place.step(0.1, 0.1, 0.1)
    backup = tmp_path / "backup"
    shutil.copytree(place.file.parent, backup)
    place.step(0.6, 0.6, 0.6)
    newest = place.people.read_bytes()
    for _ in range(repairs):
        shutil.copytree(backup, place.file.parent, dirs_exist_ok=True)
        with place.ledger() as ledger:
            assert reconcile(ledger, reason="restored")
            assert verify(ledger).fine
    with pytest.raises(exceptions.LedgerCorrupt, match="old backup"):
        place.step(0.5, 0.5, 0.5)
    place.people.write_bytes(newest)
    assert place.step(0.5, 0.2, 0.2) == [False, True, True]
