"""The people's tallies of an account: one private file, and one row of the ledger.

    reserve(people, costs)  lock the file; charge everyone in memory; write the whole
                            file anew, synced and renamed into place; note the step's
                            charge in the ledger; only then return the mask. Nothing is
                            ever given back

The row of `people_store` names the charge that paid for the budgets and that of the
newest step. A crash leaves the file of before the step, whose mask no process has,
or the one with its charges. So the file may be ahead of the row by the steps that
crashes cut short, and never behind it: an old backup or a foreign copy is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from secrets import token_bytes
from typing import Any

import numpy as np

from dpflow.accounting.rules.individual import IndividualBound, IndividualFilter
from dpflow.durable import make_private_folder, sync, sync_path, write
from dpflow.exceptions import (
    InvalidCost,
    LedgerCorrupt,
    LedgerMissing,
    LedgerUnavailable,
    ReservationConflict,
)
from dpflow.interrupts import without_interrupts
from dpflow.ledger import Ledger, PeopleStore
from dpflow.ledger.requests import UNKNOWN
from dpflow.locks import LOCK_SECONDS as _LOCK_SECONDS
from dpflow.locks import FileLock, open_private, reason_of
from dpflow.people.slots import Slots
from dpflow.people.state import Floats, PrivateMask, PrivateTally, check_costs

_FORMAT = "dpflow-people-5"
_FLOAT_BYTES = 8
_CHECKSUM_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class _People:
    """The contents of the file: private data.

    Attributes:
        tally: Remaining budget of each person.
        slots: Places of the people in the tally.
        first: Charge that paid for the budgets.
        newest: Charge of the newest step.
        before: Charges of the steps before it, of which the ledger may note any: of
            the newest one that was noted, and of those that were cut short since.
    """

    tally: PrivateTally
    slots: Slots
    first: str
    newest: str
    before: Sequence[str]


class PersonStore:
    """The people's tallies of the account that a running step is charged to.

    The file is private data and belongs to the data; its size shows how many people
    there are, and the time that a step takes may tell more.

    Source: the ledger's protocol: docs/derivations/ledger.md#reservations.

    Checked by: tests/people/test_store.py, test_store_crash.py.

    Args:
        ledger: Ledger of the charge.
        charge: Reservation of the running step.
        folder: Folder of the file.

    Raises:
        LedgerCorrupt: If the charge's account has no budgets of people.
    """

    def __init__(self, ledger: Ledger, charge: str, folder: Path) -> None:
        self._ledger, self._charge = ledger, charge
        self._account = ledger.find_payer(charge).account
        name = re.sub(r"[^A-Za-z0-9._-]", ".", self._account)
        self.path = folder / f"{ledger.id}.{name}.people"

    def reserve(
        self, people: Sequence[Any], costs: Callable[[IndividualBound], Floats]
    ) -> PrivateMask:
        """Charge everyone whom the step fits, durably, before the step may run.

        The first step of an account makes the file.

        Args:
            people: The ids of the people, each once. A new id joins with a whole
                budget; an id that is not a text or a whole number takes no part.
            costs: Returns float64[people] for a bound, see `PrivateTally.admit`.

        Returns:
            Who takes part, in the order of the people.

        Raises:
            InvalidCost: If the costs cannot be used; nothing is charged.
            ReservationConflict: If the charge has paid for a step already.
            LedgerMissing: If the file is missing.
            LedgerError: If the file is damaged or old, or the charge could not be
                stored durably; the step may not run.
        """
        try:
            make_private_folder(self.path.parent)
            lock = FileLock(self.path.with_name(f"{self.path.name}.lock"))
            return lock.run(lambda _: self._reserve(people, costs), _LOCK_SECONDS)
        except without_interrupts(OSError) as error:
            msg = (
                f"the store {self.path} cannot be used: {reason_of(error)}. "
                "The step drew no noise; people may have been charged. Try again."
            )
            raise LedgerUnavailable(msg, ledger=str(self.path)) from error

    def _reserve(
        self, people: Sequence[Any], costs: Callable[[IndividualBound], Floats]
    ) -> PrivateMask:
        row = self._ledger.find_payer(self._charge).store
        newest = None if row is None else row.newest
        contents, charge = self._read(row), self._charge
        # What died before its row was set may be noted yet, by a commit on its way.
        cut_short = () if contents.newest == newest else contents.before
        before = [*cut_short, contents.newest]
        if charge in before:
            msg = f"charge {charge} has paid for a step; each step needs its own"
            raise ReservationConflict(msg, reservation=charge)
        slots, mask = _charge(contents, people, costs(contents.tally.bound))
        _write(self.path, replace(contents, slots=slots, newest=charge, before=before))
        self._ledger.pay(self._account, charge, before=newest)
        return mask

    def _bound(self, charge: str) -> IndividualBound | None:
        """Return the bound that a charge paid; None if it paid none, or is unknown."""
        if charge == UNKNOWN:
            return None
        payer = self._ledger.find_payer(charge)
        if not isinstance(payer.rule, IndividualFilter):
            msg = f"account {self._account} has no budgets of people"
            raise LedgerCorrupt(msg, ledger=self._ledger.address)
        is_paid = any(payer.amount) and not payer.is_void
        return payer.rule.bound_of(payer.amount) if is_paid else None

    def _read(self, row: PeopleStore | None) -> _People:
        """Read the file, or begin one if this step has paid for it."""
        first = self._charge if row is None else row.first
        bound, is_there = self._bound(first), self.path.exists()
        if bound is None or is_there == (row is None):
            msg = (
                f"{self.path} is missing, or was never finished: the budget of "
                f"{self._account} was taken to make this store of people. If that run "
                "is not over, start this run again afterwards. Otherwise restore the "
                "newest copy, or run on the machine that has it. Without it a new term "
                "has to begin: `dpflow policy apply DATASET --new-term --reason TEXT`."
            )
            raise LedgerMissing(msg, ledger=str(self.path))
        if row is None:
            tally, slots = PrivateTally.from_store(bound, b""), Slots(token_bytes(32))
            return _People(tally=tally, slots=slots, first=first, newest="", before=())
        header, left, digests = _parts(self.path)
        noted, newest = row.newest, header["newest"]
        if header["first"] != first or noted not in (newest, *header["before"]):
            msg = (
                f"{self.path} holds the people's budgets as of step {newest}, and the "
                f"newest step in the ledger is {noted}: it is an old backup or a "
                "foreign copy. Restore the newest file; an older one would forget "
                "charges."
            )
            raise LedgerCorrupt(msg, ledger=str(self.path))
        return _People(
            tally=PrivateTally.from_store(bound, left),
            slots=Slots(bytes.fromhex(header["key"]), digests),
            first=first,
            newest=newest,
            before=header["before"],
        )


def _charge(
    before: _People, people: Sequence[Any], costs: Floats
) -> tuple[Slots, PrivateMask]:
    """Charge people by their ids; return the slots and the mask of the participants."""
    check_costs(costs, (len(people),))
    slots, places = before.slots.place_people(people)
    placed = places >= 0
    if len(np.unique(places[placed])) != placed.sum():
        msg = "people= must name each person once: sum the rows of each person first"
        raise InvalidCost(msg, name="people")
    before.tally.grow(slots.people)
    everybody = np.zeros(slots.people)
    everybody[places[placed]] = costs[placed]
    return slots, before.tally.admit(everybody).at(places)


def _write(path: Path, people: _People) -> None:
    """Replace the file, durably: after a crash it holds the old or the new contents.

    Raises:
        OSError: If a step failed; the contents are then the old or the new ones.
    """
    header = {
        "format": _FORMAT,
        "first": people.first,
        "newest": people.newest,
        "before": people.before,
        "people": people.slots.people,
        "key": people.slots.key.hex(),
    }
    parts: list[bytes | memoryview] = [json.dumps(header).encode() + b"\n"]
    parts += [people.tally.to_store(), people.slots.to_store()]
    checksum = hashlib.sha256()
    for part in parts:
        checksum.update(part)
    fresh = path.with_name(f"{path.name}.new")
    descriptor = open_private(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        for part in (checksum.digest(), *parts):
            write(descriptor, memoryview(part))
        # By the descriptor that wrote: another may not hear of a write that failed.
        sync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(fresh, path)  # noqa: PTH105
    sync_path(path.parent)


def _parts(path: Path) -> tuple[dict[str, Any], bytes, bytes]:
    """Read the file and check all of it: header, remaining budgets, people's digests.

    Raises:
        LedgerCorrupt: If a bit of it changed.
        OSError: If it cannot be read.
    """
    contents = path.read_bytes()
    checksum, signed = contents[:_CHECKSUM_BYTES], contents[_CHECKSUM_BYTES:]
    text, _, body = signed.partition(b"\n")
    if hashlib.sha256(signed).digest() != checksum or _FORMAT.encode() not in text:
        msg = (
            f"{path} is damaged: its checksum or format does not match. No step may "
            "run on it: restore the newest copy. An older one would forget charges, "
            "and the ledger refuses it."
        )
        raise LedgerCorrupt(msg, ledger=str(path))
    header = json.loads(text)
    end = header["people"] * _FLOAT_BYTES
    return header, body[:end], body[end:]
