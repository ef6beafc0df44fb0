"""The witness of a ledger: a place outside of what is restored with the ledger.

Each line is written with a proof: the writer first proves that the entry which the
witness shows is in its own journal, whether its line raises the number or not. If the
proof fails, two copies of the ledger are in use: nothing is raised, the body does not
start, and the dataset is marked.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from dpflow.exceptions import (
    ConfigurationError,
    LedgerCorrupt,
    LedgerRolledBack,
    LedgerUnavailable,
    LedgerUnwitnessed,
)
from dpflow.interrupts import suppress, without_interrupts
from dpflow.ledger.witness.lines import Head, Line, Witnessed
from dpflow.locks import TurnQueue, reason_of

T = TypeVar("T")

#: An entry: dataset, number and hash.
Proof = tuple[str, int, str]
#: Returns the hashes of entries in the own journal; absent ones are omitted.
Prove = Callable[[Sequence[tuple[str, int]]], Mapping[tuple[str, int], str]]
#: Names accounts, where a place does not hold all of them in memory.
Accounts = Callable[[], Sequence[str]]
#: How long a thread waits for the others of its process.
_THREAD_SECONDS = 60.0


class Witness(ABC):
    """The witness of one ledger, used by one thread at a time.

    Each place implements the abstract methods. They raise FileNotFoundError if the
    witness was never begun or is lost, ValueError if it is damaged, and any other
    OSError or LedgerUnavailable if the place does not answer or is not durable; texts
    hold no secret.

    Args:
        place: Where it is, for messages; without any secret.
        ledger: Id of the ledger.
    """

    def __init__(self, place: str, ledger: str) -> None:
        self.place = place
        self.ledger = ledger
        self._alone = TurnQueue()

    # What others call

    def read(self, datasets: Sequence[str], accounts: Accounts) -> Witnessed:
        """Return what the witness holds of datasets and accounts, at least.

        Raises:
            LedgerUnwitnessed: If it was never begun, or is lost.
            LedgerCorrupt: If it is damaged or another ledger's.
            LedgerUnavailable: If it cannot be read.
        """
        return self._asked(self._read, datasets, accounts)

    def read_all(self) -> Witnessed:
        """Return everything; raises as `read`."""
        return self._asked(self._read_all)

    def exists(self) -> bool:
        """Return True if it was begun.

        Raises:
            LedgerUnavailable: If the place does not answer.
        """
        with suppress(LedgerUnwitnessed):
            self._asked(self._read, (), list)
            return True
        return False

    def record(self, lines: Sequence[Line], prove: Prove, *, synced: bool) -> None:
        """Write lines, each with its proof.

        Args:
            lines: Lines of entries that are committed.
            prove: Reads hashes of the own journal.
            synced: Write them durably, before a body may start.

        Raises:
            LedgerRolledBack: If two copies of the ledger are in use, or the lines are
                of an older epoch than the witness's.
            LedgerUnwitnessed: If it was never begun, or is lost.
            LedgerUnavailable: If they cannot be written; no step may start then.
        """
        self._asked(partial(self._record, lines, prove, synced=synced))

    def begin(self, state: Witnessed, *, anew: bool = False) -> None:
        """Begin the witness with what the ledger holds now.

        Args:
            state: What it holds.
            anew: Begin after an older one, which stays.

        Raises:
            LedgerUnavailable: If it cannot be written.
            ConfigurationError: If there is one, without `anew`.
        """
        self._asked(partial(self._begin, state, anew=anew))

    # What a place implements

    @abstractmethod
    def _read(self, datasets: Sequence[str], accounts: Accounts) -> Witnessed:
        """Return what the witness holds of datasets and accounts, at least."""

    @abstractmethod
    def _read_all(self) -> Witnessed:
        """Return everything."""

    @abstractmethod
    def _record(self, lines: Sequence[Line], prove: Prove, *, synced: bool) -> None:
        """Write lines, each with its proof."""

    @abstractmethod
    def _begin(self, state: Witnessed, *, anew: bool) -> None:
        """Replace everything, durably, all or nothing."""

    # Shared

    def find_fork(
        self, proofs: Iterable[Proof], lines: Sequence[Line], prove: Prove
    ) -> str | None:
        """Return a dataset whose witnessed entry is not in the own journal.

        Args:
            proofs: Entries that the witness shows.
            lines: Own lines, which need no proof.
            prove: Reads hashes of the own journal.
        """
        own = {(line.dataset, line.number): line.hash for line in lines}
        unknown = []
        for dataset, number, digest in proofs:
            known = own.get((dataset, number))
            if known is None:
                unknown.append((dataset, number, digest))
            elif known != digest:
                return dataset
        if not unknown:
            return None
        found = prove([proof[:2] for proof in unknown])
        for dataset, number, digest in unknown:
            if number > 0 and found.get((dataset, number)) != digest:
                return dataset
        return None

    def check_epochs(self, heads: Mapping[str, Head], lines: Sequence[Line]) -> None:
        """Refuse lines of an older epoch than the witness's.

        Raises:
            LedgerRolledBack: If there are any.
        """
        for line in lines:
            head = heads.get(line.dataset)
            if head is None:
                continue
            # A repair begins an epoch, in which one copy is left.
            is_marked = head.forked and line.epoch <= head.epoch
            if line.epoch < head.epoch or is_marked:
                raise self.say_forked(line.dataset)

    def say_forked(self, dataset: str) -> LedgerRolledBack:
        """Return the error for a dataset of which two copies are in use."""
        msg = (
            f"two copies of the ledger {self.ledger} are in use: the witness "
            f"{self.place} holds entries of dataset {dataset!r} that this one lacks. "
            "The step did not run. Stop all runs, remove the other copy, and run "
            "`dpflow ledger reconcile` on the one that stays."
        )
        return LedgerRolledBack(msg, ledger=self.ledger, witness=self.place)

    def refuse_second(self) -> ConfigurationError:
        """Return the error for a witness that exists."""
        msg = f"there is a witness of this ledger at {self.place} already"
        return ConfigurationError(msg)

    def _asked(self, ask: Callable[..., T], *arguments: Any) -> T:
        """Ask the place while no other thread does."""
        try:
            return self._alone.run(ask, _THREAD_SECONDS, *arguments)
        except without_interrupts(FileNotFoundError):
            msg = (
                f"there is no witness at {self.place}, so nothing outside the ledger "
                f"{self.ledger} says that it forgot no charge. Restore it, or set "
                "DPFLOW_WITNESS to its place. On a new machine, and after checking "
                "what the ledger holds, run `dpflow ledger trust`."
            )
            raise LedgerUnwitnessed(msg, witness=self.place) from None
        except without_interrupts(ValueError) as error:
            msg = (
                f"the witness {self.place} is damaged: {error}. Restore it from a "
                "backup. Without one, move it away, check the ledger with `dpflow "
                "ledger verify`, and begin a new witness with `dpflow ledger trust`."
            )
            raise LedgerCorrupt(msg, witness=self.place) from None
        except LedgerRolledBack:
            raise
        except without_interrupts(OSError, LedgerUnavailable) as error:
            why = reason_of(error) if isinstance(error, OSError) else str(error)
            text = why.rstrip(".?")
            msg = (
                f"the witness {self.place} does not answer: {text}. The step did not "
                "run; try again. DPFLOW_WITNESS names another place for it."
            )
            raise LedgerUnavailable(msg, witness=self.place) from error


def list_proofs(heads: Mapping[str, Head], lines: Sequence[Line]) -> list[Proof]:
    """Return the entries that the witness shows of the datasets of lines.

    A repair's line begins an epoch: what the witness shows before it is lost.
    """
    epochs = {line.dataset: line.epoch for line in lines}
    return [
        (name, heads[name].number, heads[name].hash)
        for name, epoch in epochs.items()
        if name in heads and epoch == heads[name].epoch
    ]


#: Makes the witness of a ledger with this id.
WitnessAt = Callable[[str], Witness]
