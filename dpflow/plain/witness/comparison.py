"""The ledger and its witness: compared before each decision, written after it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from dpflow.exceptions import LedgerRolledBack
from dpflow.plain.decisions.decision import Decision
from dpflow.plain.tables.database import Transaction
from dpflow.plain.tables.loading import Rows
from dpflow.plain.tables.rows import Dataset


class Seen(NamedTuple):
    """The newest entry of a dataset that this process saw."""

    epoch: int
    number: int
    hash: str


class Watch:
    """Keeps a ledger from deciding anything after it forgot a charge.

    Args:
        place: The ledger, for messages.
        witness: Its witness; None if that was waived.
    """

    def __init__(self, place: str, witness: Any) -> None:
        self.place = place
        self.witness = witness
        self._seen: dict[str, Seen] = {}

    def read(self, names: Sequence[str] | None) -> Any:
        """Read the witness about datasets, before their lock."""
        del names

    def numbers_of(self, names: Sequence[str]) -> list[tuple[str, int]]:
        """Return datasets and numbers whose hashes the first trip reads."""
        return [(n, self._seen[n].number) for n in names if n in self._seen]

    def check(self, transaction: Transaction, rows: Rows, watched: Any) -> None:
        """Check that the ledger holds what this process and the witness saw.

        Raises:
            LedgerRolledBack: If it is an older copy.
        """
        del watched
        for name, dataset in transaction.datasets.items():
            seen = self._seen.get(name)
            if seen is not None and seen.epoch == dataset.epoch:
                self._check_seen(transaction, dataset, seen)
            self._seen[name] = Seen(dataset.epoch, dataset.number, dataset.hash)

    def _check_seen(
        self, transaction: Transaction, dataset: Dataset, seen: Seen
    ) -> None:
        if dataset.number == seen.number:
            found = dataset.hash
        elif dataset.number < seen.number or seen.number == 0:
            found = "" if seen.number else seen.hash
        else:
            found = transaction.hash_of(dataset.name, seen.number)
        if found != seen.hash:
            msg = (
                f"the ledger {self.place} lacks entry {seen.number} of dataset "
                f"{dataset.name!r}, which this process saw: an older copy was put "
                "in its place. Nothing was charged. Stop all runs, bring the right "
                "ledger back, and start them again."
            )
            raise LedgerRolledBack(msg, ledger=self.place)

    def saw(self, decision: Decision) -> None:
        """Remember the newest entries after a commit."""
        for name, dataset in decision.datasets.items():
            self._seen[name] = Seen(dataset.epoch, dataset.number, dataset.hash)

    def record(self, decision: Decision) -> None:
        """Write committed entries to the witness, durably."""

    def record_end(self, decision: Decision) -> None:
        """Write the end of a charge to the witness, without a sync."""

    def forgotten(self, transaction: Transaction, names: Sequence[str]) -> list[str]:
        """Return accounts of terms that lack charges which were witnessed."""
        del transaction, names
        return []
