"""What a ledger forgot besides charges: decisions, and outputs that it had kept.

Freezes, tightened policies and new terms charge nothing, so no usage tells of them.
Until someone decides anew, the dataset is frozen: that is the strictest of what may
have been decided. An output that was kept is drawn again when it is asked for again,
with other noise and at a charge of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dpflow.ledger.rows import term_of
from dpflow.ledger.state import State
from dpflow.ledger.storage.tables import Reading
from dpflow.ledger.views.releases import read_releases
from dpflow.ledger.witness.lines import Line


@dataclass(frozen=True, slots=True, kw_only=True)
class LostDecisions:
    """What a ledger forgot about one dataset, besides charges.

    Attributes:
        gates: Whether a freeze or a tightened policy is among it.
        terms: Numbers of the lost terms that nobody has opened again since.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LostRelease:
    """An output that a ledger kept, or may have kept, and does not keep any more.

    Attributes:
        reservation: The charge that it was made under.
        dataset: What it was made of; several are parted by commas.
        run: The flow run, if only the witness tells of it.
        id: The start of its keyed digest; None where only the witness tells of it,
            which knows the charge and not what came of it.
        key: Its release key for people; empty for a replay within one flow run.
        step: Name of the step.
        digest: HMAC of the encoded value.
        at: When it was claimed.
    """

    reservation: str
    dataset: str
    run: str | None = None
    id: str | None = None
    key: str | None = None
    step: str | None = None
    digest: str | None = None
    at: str | None = None


def kept_releases(reading: Reading) -> tuple[LostRelease, ...]:
    """Return what would be lost with a ledger: all that it can replay."""
    return tuple(
        LostRelease(
            reservation=each.row.charge,
            dataset=each.dataset,
            id=each.id,
            key=each.key,
            step=each.step,
            digest=each.digest,
            at=each.at,
        )
        for each in read_releases(reading)
        if each.size is not None and each.state == "settled"
    )


def perhaps_lost(gone: Sequence[Line]) -> tuple[LostRelease, ...]:
    """Return what may have been kept of the charges that a ledger lacks."""
    runs = {line.charge: line.run for line in gone if line.kind == "reserve"}
    books = {line.charge: line.books for line in gone if line.books}
    return tuple(
        LostRelease(reservation=name, dataset=",".join(books[name]), run=run)
        for name, run in runs.items()
        if name is not None
    )


def lost_decisions(
    reading: Reading, state: State, book: str, gone: Sequence[Line]
) -> LostDecisions | None:
    """Return what was lost of a dataset besides charges; None if nothing was.

    A ledger that has no term of a dataset is opened again by its policy file, so that
    only its later decisions count.

    Args:
        reading: Of the ledger.
        state: With the book and its terms.
        book: Name of the dataset.
        gone: The lines about it that the ledger lacks.
    """
    newest, first = state.book(book).terms, min(line.number for line in gone)
    lost: set[int] = set()
    if newest:
        opened = sum(
            entry.number < first and entry.body["book"] == book
            for entry in reading.rare("open")
        )
        again = sum(line.kind == "open" for line in gone)
        lost = {*range(opened + 1, opened + again + 1)}
        mine = f"{book}#"
        lost |= {term_of(n) for line in gone for n in line.used if n.startswith(mine)}
    terms = tuple(sorted(number for number in lost if number > newest))
    # A policy file opens the first term again.
    gates = any(
        line.decides
        and (line.kind != "open" or (not newest and f"{book}#1" not in line.used))
        for line in gone
    )
    if not gates and not terms:
        return None
    return LostDecisions(dataset=book, gates=gates, terms=terms)


def is_unused(lines: Sequence[Line], account: str) -> bool:
    """Say whether lines about an account tell of no charge, not even of nothing."""
    return all(
        line.kind != "reserve" and not any(line.used.get(account, ())) for line in lines
    )
