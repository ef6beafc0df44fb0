"""The witness of a ledger: a place outside of what is restored with the ledger.

Each line is written with a proof: the writer first proves that the entry which the
witness shows is in its own journal, whether its line raises the number or not. If the
proof fails, two copies of the ledger are in use: nothing is raised, the body does not
start, and the dataset is marked.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
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
from dpflow.ledger.witness.lines import ENDS, Line, Witnessed
from dpflow.locks import TurnQueue, reason_of

T = TypeVar("T")

#: Returns the hashes of entries in the own journal; absent ones are omitted.
Prove = Callable[[Sequence[tuple[str, int]]], Mapping[tuple[str, int], str]]
#: Names accounts, where a place does not hold all of them in memory.
Accounts = Callable[[], Sequence[str]]
#: Makes the witness of a ledger with this id.
WitnessAt = Callable[[str], "Witness"]
#: How long a thread waits for the others of its process.
_THREAD_SECONDS = 60.0


class Witness(ABC):
    """The witness of one ledger, used by one thread at a time.

    Each place implements the abstract methods. They raise FileNotFoundError if the
    witness was never begun or is lost, ValueError if it is damaged, and any other
    OSError or LedgerUnavailable if the place does not answer or is not durable; texts
    hold no secret.

    Args:
        address: Where it is, for messages; without any secret.
        ledger: Id of the ledger.
    """

    #: So many lines of ends are written together: in a file, each one alone.
    most_ends = 1

    def __init__(self, address: str, ledger: str) -> None:
        self.address = address
        self.ledger = ledger
        self._alone = TurnQueue()
        #: Lines of ends, which are written with the next line.
        self._ends: list[Line] = []

    def read(self, datasets: Sequence[str], accounts: Accounts) -> Witnessed:
        """Return what the witness holds of datasets and accounts, at least.

        Raises:
            LedgerUnwitnessed: If it was never begun, or is lost.
            LedgerCorrupt: If it is damaged or another ledger's.
            LedgerUnavailable: If it cannot be read.
        """
        return self._call(self._load, datasets, accounts)

    def read_all(self) -> Witnessed:
        """Return everything; raises as `read`."""
        return self._call(self._load, None, list)

    def exists(self) -> bool:
        """Return True if it was begun.

        Raises:
            LedgerUnavailable: If the place does not answer.
        """
        with suppress(LedgerUnwitnessed):
            self.read((), list)
            return True
        return False

    def check_apart(self, ledger_url: str) -> None:
        """Refuse a place of the ledger that is restored together with this witness.

        Raises:
            ConfigurationError: If it is such a place.
            LedgerUnavailable: If one of them does not answer.
        """
        del ledger_url

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
        written = self._call(partial(self._record, lines, prove, synced=synced))
        for line in written:
            if line.kind == "forked":
                raise self.say_forked(line.dataset)

    def _record(
        self, lines: Sequence[Line], prove: Prove, *, synced: bool
    ) -> Sequence[Line]:
        """Write lines with the ends before them; on a server ends wait for them."""
        every = [*self._ends, *lines]
        if not every or (not synced and len(every) < self.most_ends):
            self._ends = every
            return ()
        written = self._raise(every, prove, synced=synced)
        self._ends = []
        return written

    def begin(self, state: Witnessed, *, anew: bool = False) -> None:
        """Begin the witness with what the ledger holds now.

        Args:
            state: What it holds.
            anew: Begin after an older one, which stays.

        Raises:
            LedgerUnavailable: If it cannot be written.
            ConfigurationError: If there is one, without `anew`.
        """
        state.thin()
        self._call(partial(self._begin, state, anew=anew))

    @abstractmethod
    def _load(self, datasets: Sequence[str] | None, accounts: Accounts) -> Witnessed:
        """Return what the witness holds of datasets and accounts, at least.

        Args:
            datasets: Names; None for everything.
            accounts: Names accounts.
        """

    @abstractmethod
    def _raise(
        self, lines: Sequence[Line], prove: Prove, *, synced: bool
    ) -> Sequence[Line]:
        """Write what `_choose` returns, while no other process writes; return it."""

    @abstractmethod
    def _begin(self, state: Witnessed, *, anew: bool) -> None:
        """Replace everything, durably, all or nothing."""

    def _choose(
        self,
        state: Witnessed,
        lines: Sequence[Line],
        since: Sequence[Line],
        prove: Prove,
    ) -> list[Line]:
        """Return the lines that are written: own ones, or marks if a proof fails.

        Ends of an older epoch are omitted.

        Args:
            state: What the witness holds.
            lines: Own lines.
            since: Lines of others that no writer proved yet.
            prove: Reads hashes of the own journal.
        """
        chosen = []
        for line in lines:
            head = state.heads.get(line.dataset)
            if head is None or not head.refuses(line):
                chosen.append(line)
            elif line.kind not in ENDS:
                raise self.say_forked(line.dataset)
        forked = find_forked(state, chosen, since, prove)
        marks = [Line(n, state.heads[n].epoch, 0, "", "forked") for n in forked]
        return marks or chosen

    def say_forked(self, dataset: str) -> LedgerRolledBack:
        """Return the error for a dataset of which two copies are in use."""
        msg = (
            f"two copies of the ledger {self.ledger} are in use: the witness "
            f"{self.address} holds entries of dataset {dataset!r} that this one lacks. "
            "The step did not run. Stop all runs, remove the other copy, and run "
            "`dpflow ledger reconcile` on the one that stays."
        )
        return LedgerRolledBack(msg, ledger=self.ledger, witness=self.address)

    def refuse_second(self) -> ConfigurationError:
        """Return the error for a witness that exists."""
        msg = f"there is a witness of this ledger at {self.address} already"
        return ConfigurationError(msg)

    def _call(self, ask: Callable[..., T], *arguments: Any) -> T:
        """Ask the place while no other thread does."""
        try:
            return self._alone.run(ask, _THREAD_SECONDS, *arguments)
        except without_interrupts(FileNotFoundError):
            msg = (
                f"there is no witness at {self.address}, so nothing outside the ledger "
                f"{self.ledger} says that it forgot no charge. Restore it, or set "
                "DPFLOW_WITNESS to its place. On a new machine, and after checking "
                "what the ledger holds, run `dpflow ledger trust`."
            )
            raise LedgerUnwitnessed(msg, witness=self.address) from None
        except without_interrupts(ValueError) as error:
            msg = (
                f"the witness {self.address} is damaged: {error}. Restore it from a "
                "backup. Without one, move it away, check the ledger with `dpflow "
                "ledger verify`, and begin a new witness with `dpflow ledger trust`."
            )
            raise LedgerCorrupt(msg, witness=self.address) from None
        except LedgerRolledBack:
            raise
        except without_interrupts(OSError, LedgerUnavailable) as error:
            why = reason_of(error) if isinstance(error, OSError) else str(error)
            text = why.rstrip(".?")
            msg = (
                f"the witness {self.address} does not answer: {text}. The step did not "
                "run; try again. DPFLOW_WITNESS names another place for it."
            )
            raise LedgerUnavailable(msg, witness=self.address) from error


def find_forked(
    state: Witnessed, lines: Sequence[Line], since: Sequence[Line], prove: Prove
) -> list[str]:
    """Return the datasets of lines whose witnessed entries the own journal lacks.

    A repair's line begins an epoch: what the witness shows of before is lost.

    Args:
        state: What the witness holds.
        lines: Own lines, which need no proof.
        since: Lines that no writer proved yet.
        prove: Reads hashes of the own journal.
    """
    own = {(line.dataset, line.number): line.hash for line in lines}
    epochs, unproved = dict[str, int](), dict[tuple[str, int], list[str]]()
    for line in lines:
        head = state.heads.get(line.dataset)
        if head is not None and head.epoch == line.epoch:
            epochs[line.dataset] = head.epoch
            since = [*since, Line(line.dataset, head.epoch, head.number, head.hash, "")]
    for line in since:
        pair = line.dataset, line.number
        in_epoch = epochs.get(line.dataset) == line.epoch and line.number > 0
        if in_epoch and own.get(pair) != line.hash:
            unproved.setdefault(pair, []).append(line.hash)
    proofs = prove([*unproved]) if unproved else {}
    lacking = [p[0] for p, hashes in unproved.items() if {*hashes} != {proofs.get(p)}]
    return list(dict.fromkeys(lacking))
