"""Freezes, withdrawals and signed checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dpflow.exceptions import PolicyNotApplied
from dpflow.ledger.decision.terms import policies_of
from dpflow.ledger.model import Command, Decision
from dpflow.ledger.rows import Term
from dpflow.ledger.state import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Freeze(Command):
    """Refuse everything on a book, or end that; steps that run already may end."""

    book: str
    reason: str
    unfreeze: bool = False

    def decide(self, state: State) -> Decision:
        """Write that a book is frozen, or open again.

        The answer is whether it was not so before.

        Raises:
            PolicyNotApplied: If no policy of the book was applied yet.
        """
        pen, term = Decision(state, self), state.newest(self.book)
        if term is None:
            msg = (
                f"the ledger has applied no policy of dataset {self.book!r}, so there "
                f"is nothing to freeze. Run `dpflow policy apply {self.book}` first."
            )
            raise PolicyNotApplied(msg, dataset=self.book)
        if (state.book(self.book).frozen is not None) != self.unfreeze:
            return pen.answered(answer=False)
        closed(pen, term, self.reason, unfreeze=self.unfreeze)
        return pen.answered(answer=True)


def closed(pen: Decision, term: Term, reason: str, *, unfreeze: bool) -> None:
    """Write that a book is frozen, or unfrozen."""
    why = {"who": pen.command.facts.get("who", ""), "reason": reason}
    body = {**why, "book": term.book, "policy": policies_of([term])}
    if unfreeze:
        pen.write("unfreeze", {}, body)
    else:
        pen.write("freeze", {}, {**body, "frozen": {**why, "at": pen.command.at}})


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdraw(Command):
    """Delete the value of a release; its digest and its charge stay.

    Attributes:
        key: Of the release.
        digest: Of the value that is meant; another one is kept.
        reason: Why, for the journal.
    """

    key: str
    digest: str | None
    reason: str

    def decide(self, state: State) -> Decision:
        """Delete the value of a release; the answer is whether there was one."""
        pen, kept = Decision(state, self), state.release(self.key)
        charge = None if kept is None else state.charge(kept.charge)
        if (
            kept is None
            or charge is None
            or (kept.state, kept.digest) != ("settled", self.digest)
            or kept.key not in state.values
        ):
            return pen.answered(answer=False)
        said = {"release": kept.key, "digest": kept.digest, "reason": self.reason}
        body = {**said, "books": charge.made.books}
        pen.write("withdraw", {}, body, charge=charge.id)
        return pen.answered(answer=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint(Command):
    """Keep a signature over an entry, and over all before it.

    Attributes:
        signed: What the journal keeps: the signature, and what it was made of, such as
            number and hash of the entry that was signed; others may have come since.
    """

    signed: Mapping[str, Any]

    def keys(self, _: State) -> Iterator[str]:
        """Yield the entry."""
        yield f"#{self.signed['number']}"

    def decide(self, state: State) -> Decision:
        """Keep a signature; the answer is whether the journal holds that entry."""
        pen, entry = Decision(state, self), state.entries.get(self.signed["number"])
        if entry is None or entry.hash != self.signed["hash"]:
            return pen.answered(answer=False)
        pen.write("checkpoint", {}, {"signed": dict(self.signed)})
        return pen.answered(answer=True)
