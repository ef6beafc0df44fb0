"""What people ask of the ledger by hand, and what it answers: frozen data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from dpflow.accounting.costs.base import Cost
from dpflow.ledger.model import Command, Keys, Reserve
from dpflow.ledger.records import Request, TermView
from dpflow.ledger.rows import Sums, Term
from dpflow.policy import Policy
from dpflow.policy.changes import Change, Verdict, overall

# Commands


@dataclass(frozen=True, slots=True, kw_only=True)
class Freeze(Command):
    """Refuse everything on a book, or end that."""

    book: str
    who: str
    reason: str
    unfreeze: bool = False

    @property
    def keys(self) -> Keys:
        """The book with its accounts, which the answer names."""
        return Keys(books=(self.book,), whole=(self.book,))


@dataclass(frozen=True, slots=True, kw_only=True)
class ByHand(Command):
    """Charge of an operator.

    Attributes:
        reason: Why, for the journal.
        evidence: The sha256 of a file that proves it; a term uses each once.
    """

    guarded: ClassVar[bool] = True

    reason: str
    evidence: str | None = None

    @property
    def claims(self) -> tuple[str, ...]:
        """Names that a term uses once."""
        return () if self.evidence is None else (f"evidence {self.evidence}",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Amend(ByHand):
    """Charge what a step cost more than was reserved for it.

    Attributes:
        charge: Of the step.
        cost: Corrected cost of the step.
        dataset: One that the step read, if the operator names it.
    """

    charge: str
    cost: Cost
    dataset: str | None = None

    @property
    def keys(self) -> Keys:
        """The charge with all that it holds, and the evidence."""
        return Keys(charges=(self.charge,), claims=self.claims)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior(ByHand):
    """Charge prior spending, before the ledger governed the dataset.

    Attributes:
        request: The dataset, its partitions, the flow and the cost.
        applies: Whether a first policy may be applied.
    """

    request: Request
    applies: bool = True

    @property
    def keys(self) -> Keys:
        """The accounts of every gate, and the evidence."""
        keys = Reserve(at="", writer="", request=self.request).keys
        claims = (*keys.claims, *self.claims)
        return Keys(books=keys.books, gates=keys.gates, claims=claims)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What whoever applies a policy asks for, besides the file.

    Attributes:
        reason: Why; a new term has to say.
        new_term: Open a term with tallies of its own.
        raise_lifetime: Raise or drop the lifetime; the promise it made is void then.
    """

    reason: str = ""
    new_term: bool = False
    raise_lifetime: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Apply(Command):
    """Make a policy the ledger's own copy, which governs from then on.

    Attributes:
        forgotten: Accounts that the witness knows to have been charged.
        sources: Those of the book's terms, which it may let go of.
    """

    policy: Policy
    wish: Wish
    forgotten: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()

    @property
    def keys(self) -> Keys:
        """Every term and account of the book, and who uses its source."""
        policy = self.policy
        used = (policy.source, *self.sources)
        names = [f"source {name}" for name in dict.fromkeys(used) if name is not None]
        book = (policy.dataset,)
        return Keys(books=book, whole=book, claims=tuple(names))


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdraw(Command):
    """Delete the value of a release; its digest and its charge stay.

    Attributes:
        key: Of the release.
        book: Where the entries of its charge are.
        digest: Of the value that is meant; another one is kept.
        reason: Why, for the journal.
    """

    key: str
    book: str
    digest: str | None
    reason: str

    @property
    def keys(self) -> Keys:
        """The release, and the book that tells of its end."""
        return Keys(books=(self.book,), releases=(self.key,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume(Command):
    """Note that the schedule of a flow runs again after its refusals."""

    books: tuple[str, ...]
    flow: str
    who: str

    @property
    def keys(self) -> Keys:
        """The books that refused it."""
        return Keys(books=self.books)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint(Command):
    """Keep a signature over an entry of a book, and over all before it.

    Attributes:
        number: Of the entry that was signed; others may have come since.
        hash: Of that entry.
        signed: What the journal keeps: the signature, and what it was made of.
    """

    book: str
    number: int
    hash: str
    signed: Mapping[str, Any]

    @property
    def place(self) -> tuple[str, int]:
        """Where the entry is."""
        return self.book, self.number

    @property
    def keys(self) -> Keys:
        """The book, and the entry."""
        return Keys(books=(self.book,), entries=(self.place,))


@dataclass(frozen=True, slots=True, kw_only=True)
class BookLoss:
    """What a ledger lacks of one book.

    Attributes:
        number: Of the newest entry that it holds, when that was found out.
        amounts: What is charged again, by account.
        entries: Number and hash of each entry that is missing.
        charges: What is known of them, for the journal.
        frozen: Why the book is frozen, if a decision was lost.
    """

    number: int
    amounts: Sums = field(default_factory=dict)
    entries: tuple[tuple[int, str], ...] = ()
    charges: tuple[Mapping[str, Any], ...] = ()
    frozen: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair(Command):
    """Charge again what a ledger lacks, once; nothing is ever lowered.

    Attributes:
        losses: By book.
        reason: Why, for the journal.
        before: How many repairs the ledger had when the losses were found.
        epoch: How many it has with this one.
        policies: To open a term again of a book that lacks them all.
    """

    losses: Mapping[str, BookLoss]
    reason: str
    before: int
    epoch: int
    policies: Mapping[str, Policy] = field(default_factory=dict)

    @property
    def keys(self) -> Keys:
        """The books with all terms and accounts, and who charged these losses."""
        books = tuple(sorted(self.losses))
        names = [
            lost_name(book, number, told)
            for book, loss in self.losses.items()
            for number, told in loss.entries
        ]
        sources = [p.source for p in self.policies.values() if p.source is not None]
        names += [f"source {source}" for source in sources]
        return Keys(books=books, whole=books, claims=tuple(dict.fromkeys(names)))


def lost_name(book: str, number: int, told: str) -> str:
    """Return the name under which a lost entry is charged again, once."""
    return f"lost {book} {number} {told}"


# Answers


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What applying a policy would do.

    Attributes:
        term: The term that governs now; None if nothing was applied yet.
        changes: Each field that differs, judged.
        action: What `apply` does; "new term" it does only if asked for one.
        why: Why a policy that is tighter nevertheless needs a new term.
        pins: For "tighten", the copy that will govern.
        terms: The terms so far.
        obstacle: What the lifetime has against it; empty if nothing.
    """

    dataset: str
    term: Term | None
    changes: tuple[Change, ...]
    action: str
    why: str
    pins: Mapping[str, Any] | None
    terms: tuple[TermView, ...]
    obstacle: str = ""

    @property
    def verdict(self) -> Verdict | Literal["same"]:
        """What all changes together do to the guarantee."""
        return overall(self.changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What was applied.

    Attributes:
        term: Number of the term that governs now.
        accounts: Accounts whose gate was tightened.
        closed: Those of them that admit nothing more, for their usage was above.
        terms: The terms, this one included.
    """

    dataset: str
    action: str
    term: int
    changes: tuple[Change, ...]
    accounts: tuple[str, ...]
    closed: tuple[str, ...]
    terms: tuple[TermView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Posted:
    """What was posted to one account.

    Attributes:
        amount: In the theorem's own currency.
        state: Of the account afterwards: "overdrawn" if its gate would not have
            admitted so much.
    """

    account: str
    entry: int
    amount: Mapping[str, str]
    state: str
