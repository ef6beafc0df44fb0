"""The people's file: refuse what is old, foreign or damaged; forget nothing."""

from __future__ import annotations

import os
import shutil
import stat

import numpy as np
import pytest

from dpflow.accounting.rules.individual import IndividualBound
from dpflow.exceptions import (
    ConfigurationError,
    InvalidCost,
    LedgerCorrupt,
    LedgerMissing,
    LedgerUnavailable,
    PublicError,
)
from dpflow.people import create_store, open_store
from tests.people.places import BOUND, THREE, Place

pytestmark = pytest.mark.quick


@pytest.fixture
def place(tmp_path):
    """Two empty folders."""
    return Place(tmp_path)


def reserve(store, *costs: float) -> list[bool]:
    """Reserve a step and say who takes part."""
    mask = store.reserve(np.array(costs), THREE)
    return mask.apply(np.ones(len(costs))).astype(bool).tolist()


def test_charges_survive_reopening(place):
    """What a step charged is charged for the next process; who is left out is not."""
    with place.create() as store:
        assert reserve(store, 0.75, 0.5, 2.0) == [True, True, False]
        for people in (["a", "b"], ["a", "a", "b"]):
            with pytest.raises(InvalidCost):
                store.reserve(np.zeros(3), people)
    with place.open() as store:
        assert store.position.step == 1
        assert reserve(store, 0.5, 0.5, 1.0) == [False, True, True]
    with place.open() as store:
        assert reserve(store, 0.25, 5e-324, 5e-324) == [True, False, False]
        assert store.position.step == 3
        assert store.bound == BOUND
        assert store.reservation == "r-1"


def test_unusable_costs_charge_nothing_and_leave_the_store_open(place):
    """A wrong array is refused before anything is written."""
    with place.create() as store:
        before = place.people.read_bytes()
        with pytest.raises(InvalidCost):
            store.reserve(np.array([0.5]), THREE)
        assert place.people.read_bytes() == before
        assert store.position.step == 0
        assert reserve(store, 1.0, 1.0, 1.0) == [True, True, True]


def test_a_store_is_never_made_by_itself_or_anew(place):
    """Opening what is not there fails, and making what is there fails."""
    with pytest.raises(LedgerMissing):
        place.open()
    assert not place.people.exists()
    place.create().close()
    with pytest.raises(ConfigurationError):
        place.create()
    place.people.unlink()
    with pytest.raises(LedgerMissing):
        place.open()
    with pytest.raises(ConfigurationError):
        place.create()


def test_a_missing_witness_fails_closed(place):
    """Without a witness nobody knows whether the file is the newest."""
    place.create().close()
    place.witness.unlink()
    with pytest.raises(LedgerMissing):
        place.open()
    with pytest.raises(ConfigurationError):
        place.create()


def test_an_old_backup_is_refused(place, tmp_path):
    """A copy of the file from before a step would give that step's charges back."""
    with place.create() as store:
        reserve(store, 0.5, 0.5, 0.5)
        shutil.copy(place.people, tmp_path / "backup")
        reserve(store, 0.5, 0.5, 0.5)
    newest = place.people.read_bytes()
    shutil.copy(tmp_path / "backup", place.people)
    with pytest.raises(LedgerCorrupt, match="old backup"):
        place.open()
    place.people.write_bytes(newest)
    with place.open() as store:
        assert reserve(store, 5e-324, 0.0, 0.0) == [False, True, True]


def test_two_histories_of_one_step_count_differ(place):
    """A copy that ran another first step is not the store that the witness saw."""
    place.create().close()
    kept = {p: p.read_bytes() for p in (place.people, place.witness)}
    with place.open() as store:
        reserve(store, 0.0, 0.0, 0.0)
        first = place.people.read_bytes()
        reserve(store, 0.0, 0.0, 0.0)
        second = place.people.read_bytes()
    for path, contents in kept.items():
        path.write_bytes(contents)
    with place.open() as store:
        reserve(store, 1.0, 1.0, 1.0)
    for other in (first, second):
        place.people.write_bytes(other)
        with pytest.raises(LedgerCorrupt):
            place.open()


def test_a_foreign_store_or_bound_is_refused(place, tmp_path):
    """Another store of the same shape, or another bound, is not this one."""
    place.create().close()
    other = Place(tmp_path / "data")
    other.create().close()
    foreign = other.people.read_bytes()
    for bound in (
        IndividualBound(measure="rdp", order=8, bound="1.1"),
        IndividualBound(measure="rdp", order=9, bound=1),
        IndividualBound(measure="gdp", bound=1),
    ):
        with pytest.raises(LedgerCorrupt, match="ledger reserved"):
            place.open(bound=bound)
    place.people.write_bytes(foreign)
    with pytest.raises(LedgerCorrupt):
        place.open()


def test_every_damaged_byte_is_noticed(place):
    """No flipped bit, cut or addition in either file goes unnoticed."""
    with place.create() as store:
        reserve(store, 0.5, 0.5, 0.5)
    generator = np.random.default_rng(3)
    for path in (place.people, place.witness):
        whole = path.read_bytes()
        text = len(whole) if path == place.witness else whole.index(b"\0")
        offsets = {*range(text), *range(max(len(whole) - 24, 0), len(whole))}
        damaged = [
            whole[:at]
            + bytes([whole[at] ^ (1 << generator.integers(8))])
            + whole[at + 1 :]
            for at in sorted(offsets)
        ]
        damaged += [whole[:at] for at in (0, 1, text - 1, text // 2, len(whole) - 1)]
        damaged += [whole + b"\0", whole + b"x", whole + whole, b"x" * len(whole)]
        for contents in damaged:
            path.write_bytes(contents)
            with pytest.raises(LedgerCorrupt):
                place.open()
        path.write_bytes(whole)
    place.open().close()


def test_one_process_holds_the_store(place):
    """A second opening waits for the lock and gives up; closing frees it."""
    with place.create() as store:
        with pytest.raises(LedgerUnavailable, match="another process holds"):
            place.open()
        store.close()
        place.open().close()
        with pytest.raises(LedgerUnavailable):
            reserve(store, 0.0, 0.0, 0.0)


@pytest.mark.parametrize("put", [shutil.copy, os.link, os.symlink])
def test_a_copy_is_not_open_beside_its_original(place, tmp_path, put):
    """Two open at once would each spend everyone's budget: one witness serves one."""
    place.create().close()
    other = tmp_path / "elsewhere" / "people"
    other.parent.mkdir()
    put(place.people, other)
    options = {"bound": BOUND, "witness": place.witness, "lock_seconds": 0}
    with place.open() as store:
        with pytest.raises(LedgerUnavailable, match="another process holds"):
            open_store(other, **options)
        reserve(store, 1.0, 1.0, 1.0)
    if put is os.symlink:
        with open_store(other, **options) as store:
            assert reserve(store, 1.0, 1.0, 1.0) == [False] * 3
        assert other.is_symlink()
    else:
        with pytest.raises(LedgerCorrupt, match="old backup or a foreign copy"):
            open_store(other, **options)


def test_a_forked_child_cannot_charge(place):
    """The child of a fork is another process, and does not drop the parent's lock."""
    with place.create() as store:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                store.reserve(np.zeros(3), THREE)
            except PublicError:
                store.close()
                status = 0
            os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        with pytest.raises(LedgerUnavailable):
            place.open()
        assert reserve(store, 0.0, 0.0, 0.0) == [True, True, True]


def test_a_file_replaced_while_open_is_refused(place):
    """The next step notices that the path no longer leads to the open file."""
    store = place.create()
    copied = place.people.with_name("copy")
    shutil.copy(place.people, copied)
    copied.rename(place.people)
    with pytest.raises(LedgerCorrupt, match="replaced"):
        reserve(store, 0.5, 0.5, 0.5)
    store = place.open()
    place.people.unlink()
    with pytest.raises(LedgerCorrupt, match="removed"):
        reserve(store, 0.5, 0.5, 0.5)


@pytest.mark.parametrize("which", ["data", "state"])
def test_a_write_that_fails_closes_the_store(place, which):
    """If a charge cannot be written the step gets no mask; the charge may be there."""
    store = place.create()
    folder = {"data": place.people.parent, "state": place.witness.parent}[which]
    blocked = {"data": place.people, "state": place.witness}[which]
    # A folder in the way fails for every user, root included.
    (folder / f"{blocked.name}.new").mkdir()
    with pytest.raises(LedgerUnavailable, match="did not run"):
        reserve(store, 0.75, 0.75, 0.75)
    with pytest.raises(LedgerUnavailable, match="closed"):
        reserve(store, 0.0, 0.0, 0.0)
    (folder / f"{blocked.name}.new").rmdir()
    with place.open() as again:
        charged = which == "state"
        assert again.position.step == int(charged)
        assert reserve(again, 0.5, 0.5, 0.5) == [not charged] * 3


def test_files_are_for_their_owner_only(place):
    """The people's file and its helpers are readable by nobody else."""
    with place.create() as store:
        reserve(store, 0.5, 0.5, 0.5)
        for path in [*place.people.parent.iterdir(), *place.witness.parent.iterdir()]:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_store_in_a_wrong_place_is_refused(place, tmp_path):
    """Bad places, and reservations that no header holds, make no file."""
    for reservation in ("", "x" * 201, "é", None):
        with pytest.raises(InvalidCost, match="reservation"):
            place.create(reservation=reservation)
    with pytest.raises(ConfigurationError, match="folder"):
        place.create(witness=place.people.with_name("seen"))
    with pytest.raises(LedgerUnavailable):
        create_store(
            tmp_path / "missing" / "people",
            bound=BOUND,
            witness=place.witness,
            reservation="r-1",
        )
    assert not any(place.people.parent.glob("people"))
