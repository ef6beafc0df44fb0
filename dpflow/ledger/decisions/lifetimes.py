"""Terms of a dataset as people read them, and whether a further one fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dpflow.exceptions import PolicyNotApplied
from dpflow.ledger.account_ids import Term, split
from dpflow.ledger.tables.loaded import Rows
from dpflow.periods import PERIODS
from dpflow.policy.lifetime import (
    Opened,
    differing,
    fits,
    is_within,
    room,
    say_total,
    total_of,
)
from dpflow.policy.pinned import budget_text
from dpflow.policy.windows import window_length


@dataclass(frozen=True, slots=True, kw_only=True)
class TermView:
    """One term of a dataset as people read it.

    Attributes:
        opened: The budget that the term was opened with; it counts towards the
            lifetime, because the person who tightens it may have seen outputs.
        budget: The budget now.
        charged: Whether anything was charged; a term without a charge counts nothing.
        lifetime: What all terms together may lose, as this term's copy says.
        promised: The lifetime that the term was opened with.
        frozen: What the freeze says, if the dataset is frozen in this term.
        divided: Whether `opened` caps all parts of a divided dataset together.
        overdrawn: Whether more was charged, by hand, than its budget admits.
        tally: Filter and thresholds that the term was opened with; None if only its
            budget adds up with those of other terms.
        by_time: Whether the dataset is divided by time.
        window: Number of consecutive parts that the budget covers, in all terms; 0
            without windows.
    """

    number: int
    unit: str
    relation: str
    opened: Mapping[str, str]
    budget: Mapping[str, str]
    charged: bool
    lifetime: Mapping[str, str] | None
    promised: Mapping[str, str] | None = None
    frozen: Mapping[str, Any] | None = None
    divided: bool = False
    overdrawn: bool = False
    tally: str | None = field(default=None, repr=False)
    by_time: bool = field(default=False, repr=False)
    window: int = 0

    @property
    def counted(self) -> Opened:
        """What the term counts towards the lifetime."""
        return Opened(self.unit, self.relation, self.opened, self.tally)


def is_charged(rows: Rows, term: Term) -> bool:
    """Return True if a term was charged at any cost; a voided charge counts as well."""
    return rows.account(term.root) is not None or term.root in rows.forgotten


def view_of(body: Mapping[str, Any], **fields: Any) -> TermView:
    """Return a term as people read it.

    Args:
        body: Of its newest entry.
        **fields: Fields of the view; by default it counts as charged.
    """
    pinned = body["pinned"]
    return TermView(
        **{name: body[name] for name in ("number", "opened", "promised", "tally")},
        **{name: pinned[name] for name in ("unit", "relation", "budget")},
        lifetime=pinned.get("lifetime"),
        divided="whole" in pinned,
        by_time=pinned.get("partition", {}).get("by") in PERIODS,
        window=window_length(pinned),
        **{"charged": True, **fields},
    )


def term_views(rows: Rows, book: str) -> tuple[TermView, ...]:
    """Return the terms of a book as people read them, oldest first.

    Args:
        rows: Rows with all terms and accounts of the book.
        book: Its name.
    """
    terms, frozen = rows.terms(book), rows.book(book).frozen
    overdrawn = {
        split(row.id)[1]
        for row in rows.accounts(book)
        if row.overdrawn and split(row.id)[2] not in ("flow", "odometer", "others")
    }
    return tuple(
        view_of(
            term.fields,
            charged=is_charged(rows, term),
            frozen=frozen if term is terms[-1] else None,
            # Terms share the parts of windows, which have no number.
            overdrawn=bool(overdrawn & {term.number, 0}),
        )
        for term in terms
    )


def lifetime_error(
    dataset: str,
    terms: Sequence[TermView],
    new: TermView,
    *,
    opens: bool = True,
    raises: bool = False,
) -> PolicyNotApplied | None:
    """Return an error for a file that brings all charged terms above its lifetime.

    Args:
        dataset: Its name.
        terms: The terms so far.
        new: The file as a term.
        opens: Whether the file opens a further term.
        raises: Whether the promise for all terms may end.

    Returns:
        The error if the lifetime is exceeded, if a further term has no lifetime, or if
        it breaks the promise for all terms; else None.
    """
    charged, lifetime = [view for view in terms if view.charged], new.lifetime
    if not charged or (lifetime is None and (new.window or not opens)):
        return None  # the budget of windows covers all terms
    counted = [view.counted for view in charged]
    every = [*counted, new.counted] if opens else counted
    limit = "and no lifetime caps them"
    if lifetime is not None and fits(every, lifetime):
        problem = _broken_promise(terms, new) if opens and not raises else ""
        msg = f"In dataset {dataset!r} {problem}. Add --raise-lifetime to open a "
        msg += "further term nevertheless: the promise for all terms ends with it."
        return PolicyNotApplied(msg, dataset=dataset) if problem else None
    total = total_of(every)
    sum_text = f"epsilon: {total['epsilon']}, delta: {total['delta']}"
    advice = f"Write `lifetime: {{{sum_text}}}` or more into its policy."
    if lifetime is not None:
        limit = f"above its lifetime {budget_text(lifetime)}"
        if opens:
            remaining = budget_text(room(counted, new.counted, lifetime))
            advice = (
                f"{remaining} remains for a further term: lower the budget, or undo "
                "the edit."
            )
    if opens and new.by_time:
        # A person may be in every part, so a term counts with the lifetime itself.
        advice = (
            "Parts by time may use up the lifetime together, so that no further term "
            "fits. Undo the edit, or change only what is tighter."
        )
    msg = (
        f"the terms of dataset {dataset!r} would add up to "
        f"{' + '.join(budget_text(term.budget) for term in every)} = "
        f"{say_total(every)}, {limit}. A term counts with the budget that it was "
        f"opened with. {advice}"
    )
    return PolicyNotApplied(msg, dataset=dataset, total=total, lifetime=lifetime)


def _broken_promise(terms: Sequence[TermView], new: TermView) -> str:
    """Say why a further term breaks the promise for all terms, if it does."""
    over = [str(view.number) for view in terms if view.overdrawn]
    before, after = terms[-1].lifetime, new.lifetime
    counted = [view for view in (*terms, new) if view.charged]
    if over:
        return f"more was charged in term {' and '.join(over)} than its budget"
    if odd := differing([view.counted for view in counted]):
        return (
            f"the terms add up in the tally of term {counted[0].number}, and term "
            f"{counted[odd[0]].number} differs in its filter, an option, the split of "
            "delta, its unit or its relation"
        )
    if before is not None and (after is None or not is_within(after, before)):
        return f"the file raises the lifetime {budget_text(before)}"
    return ""
