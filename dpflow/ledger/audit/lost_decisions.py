"""What a ledger forgot besides charges: decisions, and outputs that it had kept.

Freezes, tightened policies and new terms charge nothing, so no usage shows them. Until
an operator decides anew, the dataset is frozen: that is the strictest of what may have
been decided. A lost output is drawn again when a step asks for it, with other noise and
at a charge of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dpflow.ledger.rows import split
from dpflow.ledger.state import State
from dpflow.ledger.storage.tables import Reading
from dpflow.ledger.views.releases import read_releases
from dpflow.ledger.witness.lines import Line


class LostDecisions(NamedTuple):
    """What a ledger forgot about one dataset, besides charges.

    Attributes:
        gates: Whether a freeze or a tightened policy is among it.
        terms: Numbers of the lost terms that were not opened again since.
    """

    dataset: str
    gates: bool
    terms: tuple[int, ...]

    @property
    def reason(self) -> str:
        """The reason of the freeze that makes up for it."""
        lost = ["a freeze was lost, or a tightened policy"] if self.gates else []
        lost += [f"term {number} was lost" for number in self.terms]
        return f"repaired: {', and '.join(lost)}"


class LostRelease(NamedTuple):
    """An output that a ledger kept, or may have kept, and does not keep any more.

    Attributes:
        reservation: The charge that it was made under.
        dataset: The dataset that it was made of; several are parted by commas.
        run: The flow run, if only the witness shows it.
        id: The start of its keyed digest; None if only the witness shows its charge.
        key: Its release key for people; empty for a replay within one flow run.
        step: Name of the step.
        digest: HMAC of the encoded value.
    """

    reservation: str
    dataset: str
    run: str | None = None
    id: str | None = None
    key: str | None = None
    step: str | None = None
    digest: str | None = None


def kept_releases(reading: Reading) -> tuple[LostRelease, ...]:
    """Return what would be lost with a ledger: all that it can replay."""
    return tuple(
        LostRelease(e.row.charge, e.dataset, None, e.id, e.key, e.step, e.digest)
        for e in read_releases(reading)
        if e.size is not None and e.state == "settled"
    )


def lost_decisions(state: State, book: str, gone: Sequence[Line]) -> LostDecisions:
    """Return what was lost of a dataset besides charges, if anything.

    A ledger that has no term of a dataset is opened again by its policy file, so that
    only its later decisions count.

    Args:
        state: With the book.
        book: Name of the dataset.
        gone: The lines about it that the ledger lacks.
    """
    newest = state.book(book).terms
    places = [split(name)[:2] for line in gone for name in line.used]
    lost = {number for name, number in places if name == book and number > newest > 0}
    # A policy file opens the first term again.
    gates = any(
        line.decides
        and (line.kind != "open" or (not newest and f"{book}#1" not in line.used))
        for line in gone
    )
    return LostDecisions(book, gates, tuple(sorted(lost)))
