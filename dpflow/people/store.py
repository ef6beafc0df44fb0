"""The people's tallies in a file of their own, charged before a step may run.

    reserve(costs)  charge everyone in memory; write the whole file anew, synced and
                    renamed into place; write the witness; only then return the mask.
                    Nothing is ever given back

A crash leaves the file of before the step, whose mask nobody has, or the one with its
charges. The witness is a small public file, best on another disk and outside the
backups of this one: it holds the newest position, so that a restored backup or a fresh
copy is refused before the next step; and it serves one open store, not a copy beside
it. It may be behind by the one step that a crash cut short between the two writes; the
people's file never is.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from dpflow.accounting.rules.individual import IndividualBound
from dpflow.exceptions import (
    ConfigurationError,
    InvalidCost,
    LedgerCorrupt,
    LedgerMissing,
    LedgerUnavailable,
)
from dpflow.locks import FileLock
from dpflow.people.files import identity, remove_unfinished
from dpflow.people.records import (
    People,
    Position,
    read_people,
    read_witness,
    write_people,
    write_witness,
)
from dpflow.people.slots import Slots
from dpflow.people.state import Floats, PrivateMask, PrivateTally, check_costs
from dpflow.people.withheld import Withheld

_LOCK_SECONDS = 30.0
#: The header of the people's file holds no longer one.
_MOST_TEXT = 200


class PersonStore(Withheld):
    """The people's tallies of one dataset, held by one process at a time.

    Made by `create_store` and `open_store`; close it, or use it as a context manager.
    After any error while writing it is closed, and the charge may or may not be there:
    open it again. The file is private data and belongs beside the data; its size tells
    how many people there are, and the time that a step takes may tell more.

    Source: the ledger's protocol: docs/derivations/ledger.md#reservations.

    Checked by: tests/people/test_store.py, test_store_crash.py.

    Attributes:
        bound: The public bound that was reserved in the ledger.
        reservation: The ledger's reservation that pays for it.
        position: How far the store has come; public.
    """

    __slots__ = (
        "_identity",
        "_lock",
        "_locks",
        "_path",
        "_people",
        "_pid",
        "_witness",
        "bound",
        "position",
        "reservation",
    )

    def __init__(
        self,
        path: Path,
        witness: Path,
        *,
        people: People,
        locks: ExitStack,
    ) -> None:
        self._path, self._witness = path, witness
        self._people: People | None = people
        self._identity = identity(path)
        self._lock = threading.RLock()
        self._locks = locks
        self._pid = os.getpid()
        self.bound = people.tally.bound
        self.position = people.position
        self.reservation = people.reservation

    def reserve(self, costs: Floats, people: Sequence[Any]) -> PrivateMask:
        """Charge everyone whom the step fits, durably, before the step may run.

        Args:
            costs: float64[people], see `PrivateTally.admit`.
            people: The ids of the people, each once. A new id joins with a whole
                budget; an id that is not a text or a whole number takes no part.

        Returns:
            Who takes part, in the order of the costs.

        Raises:
            InvalidCost: If the costs cannot be used; nothing is charged.
            LedgerError: If the charge could not be made durable; the step may not run.
        """
        with self._lock:
            before = self._usable()
            following, active = _charged(before, costs, people)
            last = before.position
            position = replace(last, step=last.step + 1, token=secrets.token_hex(16))
            following = replace(following, position=position, previous=last.token)
            with self._closing_on_error():
                write_people(self._path, following)
                self._identity = identity(self._path)
                write_witness(self._witness, position)
            self._people, self.position = following, position
            return active

    def close(self) -> None:
        """Give up the lock. The charges stay."""
        # A forked child leaves everything to the process that opened the store.
        if self._pid == os.getpid():
            with self._lock:
                if self._people is not None:
                    self._people = None
                    self._locks.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _usable(self) -> People:
        people = self._people
        if people is None:
            msg = f"the store {self._path} is closed; open it again"
            raise LedgerUnavailable(msg, ledger=str(self._path))
        try:
            same = identity(self._path) == self._identity
        except OSError:
            same = False
        if not same:
            self.close()
            msg = f"the store {self._path} was removed or replaced while in use"
            raise LedgerCorrupt(msg, ledger=str(self._path))
        return people

    @contextmanager
    def _closing_on_error(self) -> Iterator[None]:
        """Close after any error: nobody knows then what is on the disk."""
        try:
            yield
        except OSError as error:
            self.close()
            raise unavailable(self._path, error) from error
        except BaseException:
            self.close()
            raise


def _charged(
    before: People, costs: Floats, people: Sequence[Any]
) -> tuple[People, PrivateMask]:
    """Charge people by their ids, and return the mask of those who take part."""
    check_costs(costs, (len(people),))
    slots, places = before.slots.placed(people)
    placed = places >= 0
    if len(np.unique(places[placed])) != placed.sum():
        msg = "people= must name each person once: sum what they have first"
        raise InvalidCost(msg, name="people")
    before.tally.grow(slots.people)
    everybody = np.zeros(slots.people)
    everybody[places[placed]] = costs[placed]
    return replace(before, slots=slots), before.tally.admit(everybody).at(places)


def create_store(
    path: Path,
    *,
    bound: IndividualBound,
    witness: Path,
    reservation: str,
    lock_seconds: float = _LOCK_SECONDS,
) -> PersonStore:
    """Make the store of a bound that the ledger has just reserved, and open it.

    Args:
        path: The people's file; beside the data.
        bound: What the ledger reserved, in full.
        witness: The witness; in another folder, outside the backups of `path`.
        reservation: The ledger's reservation, at most 200 characters of ASCII.
        lock_seconds: How long to wait for another holder.

    Raises:
        ConfigurationError: If one of the two files is there, or both share a folder.
        InvalidCost: If `reservation` cannot be used.
        LedgerUnavailable: If the files cannot be written or another process holds them.
    """
    path, witness = _places(path, witness)
    text = reservation if isinstance(reservation, str) else ""
    if not (text.isascii() and 0 < len(text) <= _MOST_TEXT):
        msg = (
            f"reservation must be 1 to 200 characters of ASCII, got {reservation!r:.60}"
        )
        raise InvalidCost(msg, name="reservation")
    with _locked(path, witness, lock_seconds) as locks:
        for place in (path, witness):
            if place.exists():
                msg = (
                    f"there is a file at {place} already. A store is never made "
                    "anew: that would forget what has been spent."
                )
                raise ConfigurationError(msg)
        position = Position(store=uuid.uuid4().hex, step=0, token=secrets.token_hex(16))
        contents = People(
            tally=PrivateTally.from_store(bound, bytearray()),
            slots=Slots(secrets.token_bytes(32)),
            reservation=reservation,
            position=position,
            previous="",
        )
        # The witness first: people's tallies without one would be of no use.
        write_witness(witness, position)
        write_people(path, contents)
        return PersonStore(path, witness, people=contents, locks=locks.pop_all())


def open_store(
    path: Path,
    *,
    bound: Callable[[str], IndividualBound] | IndividualBound,
    witness: Path,
    lock_seconds: float = _LOCK_SECONDS,
) -> PersonStore:
    """Open a store that exists.

    Args:
        path: The people's file.
        bound: What the ledger reserved for it, or a function that says it of the
            store's reservation.
        witness: Its witness.
        lock_seconds: How long to wait for another holder.

    Raises:
        LedgerMissing: If one of the two files is missing; neither is made by itself.
        LedgerCorrupt: If a file is damaged, too old, or of another bound.
        LedgerUnavailable: If the files cannot be used now.
    """
    path, witness = _places(path, witness)
    for place in (path, witness):
        if not place.is_file():
            msg = (
                f"there is no {place}. Restore the newest one: without it nobody knows "
                "what the people have left."
            )
            raise LedgerMissing(msg, ledger=str(place))
    with _locked(path, witness, lock_seconds) as locks:
        remove_unfinished(path)
        remove_unfinished(witness)
        people, seen = read_people(path), read_witness(witness)
        paid = bound(people.reservation) if callable(bound) else bound
        _check(path, people, seen, paid)
        if people.position != seen:
            write_witness(witness, people.position)
        return PersonStore(path, witness, people=people, locks=locks.pop_all())


def _check(path: Path, people: People, seen: Position, bound: IndividualBound) -> None:
    found = people.position
    before = replace(found, step=found.step - 1, token=people.previous)
    if seen not in (found, before):
        msg = (
            f"{path} is at step {found.step}, but its witness saw step {seen.step} of "
            "this store or another: it is an old backup or a foreign copy. Restore "
            "the newest one; an older one would forget what has been spent."
        )
        raise LedgerCorrupt(msg, ledger=str(path))
    if people.tally.bound != bound:
        msg = (
            f"{path} was made for {people.tally.bound!r}, and {bound!r} is what the "
            "ledger reserved. Open it with its own bound."
        )
        raise LedgerCorrupt(msg, ledger=str(path))


def _places(path: Path, witness: Path) -> tuple[Path, Path]:
    # One name for each file: its lock goes by the name, and links have several.
    path, witness = Path(path).resolve(), Path(witness).resolve()
    if path.parent == witness.parent:
        msg = (
            f"{witness} lies in the folder of {path}: one restore would bring back "
            "both. Put the witness elsewhere."
        )
        raise ConfigurationError(msg)
    return path, witness


@contextmanager
def _locked(path: Path, witness: Path, seconds: float) -> Iterator[ExitStack]:
    """Lock both files: a copy of the people's file elsewhere shares its witness."""
    with ExitStack() as locks:
        try:
            for place in (path, witness):
                lock = FileLock(place.with_name(f"{place.name}.lock"))
                locks.callback(lock.close)
                if lock.take(time.monotonic() + seconds) is None:
                    msg = (
                        f"another process holds the store {place} for {seconds:g} s. "
                        "The step did not run; try again when it has ended."
                    )
                    raise LedgerUnavailable(msg, ledger=str(place))
            place = path
            yield locks
        except OSError as error:
            raise unavailable(place, error) from error


def unavailable(path: Path, error: OSError) -> LedgerUnavailable:
    """Return the error of files that cannot be used.

    Args:
        path: The people's file.
        error: What the system said.
    """
    msg = (
        f"the store {path} cannot be used: {error.strerror or error}. The step did not "
        "run; it may have been charged."
    )
    return LedgerUnavailable(msg, ledger=str(path))
