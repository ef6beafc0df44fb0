"""Where a store of people and its witness lie."""

from __future__ import annotations

from pathlib import Path

from dpflow.accounting.rules.individual import IndividualBound
from dpflow.people import create_store, open_store

#: Ids of the people.
THREE = ["a", "b", 3]
BOUND = IndividualBound(measure="rdp", order=8, bound=1)


class Place:
    """Where a store and its witness lie."""

    lock_seconds = 0

    def __init__(self, root: Path) -> None:
        self.people, self.witness = root / "data" / "people", root / "state" / "seen"
        for path in (self.people, self.witness):
            path.parent.mkdir(parents=True)

    def create(self, **options):
        """Make the store."""
        named = {"bound": BOUND, "witness": self.witness, "reservation": "r-1"}
        return create_store(self.people, **(named | options))

    def open(self, **options):
        """Open the store."""
        named = {"bound": BOUND, "witness": self.witness}
        named["lock_seconds"] = self.lock_seconds
        return open_store(self.people, **(named | options))
