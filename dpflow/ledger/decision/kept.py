"""Runs that are kept for a flow: a standing hold, as if they were reserved already.

What a flow has drawn of it is in an account of its own, `DATASET#TERM/kept/FLOW`, under
the dataset's filter. What is left follows from that account and the pinned policy, so
nothing else is stored (docs/derivations/ledger.md#kept-runs).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any, NamedTuple

from dpflow.accounting.rules.tally import Tally
from dpflow.ledger.pure_cache import by_identity
from dpflow.ledger.rows import Account, Term
from dpflow.policy.kept_runs import holds_of

KEPT = "kept"


class Hold(NamedTuple):
    """What is held of a dataset for the runs of one flow.

    Attributes:
        flow: Its name.
        account: Id of the account of what it has drawn.
        run: The worst case of one run.
        runs: How many are kept in the term.
        left: What is still held.
        mine: Whether the step that asks is the flow's own.
    """

    flow: str
    account: str
    run: Tally
    runs: int
    left: Tally
    mine: bool = False

    @property
    def runs_left(self) -> int:
        """How many runs are still held whole."""
        pairs = zip(self.left.amounts, self.run.amounts, strict=True)
        return min((left // each for left, each in pairs if each), default=self.runs)

    def of_runs(self, runs: int) -> Hold:
        """Return the hold of another number of runs, as if nothing was drawn."""
        return self._replace(runs=runs, left=self.run.times(runs))

    def after(self, row: Account | None) -> Hold:
        """Return the hold when its flow has drawn what an account says."""
        if row is None:
            return self
        drawn = Tally((*map(add, row.settled, row.held),))
        return self._replace(left=remainder(self.run.times(self.runs), drawn))


def remainder(whole: Tally, drawn: Tally) -> Tally:
    """Return what is left of a whole, component by component, at least zero."""
    pairs = zip(whole.amounts, drawn.amounts, strict=True)
    return Tally(tuple(max(a - b, 0) for a, b in pairs))


@by_identity
def holds_of_term(term: Term) -> tuple[Hold, ...]:
    """Return what a term holds for flows, as if nothing was drawn."""
    return announced_holds(term.facts["pinned"], f"{term.book}#{term.number}")


def announced_holds(pinned: Mapping[str, Any], base: str = "") -> tuple[Hold, ...]:
    """Return what a copy of a policy holds for flows, as if nothing was drawn."""
    return tuple(
        Hold(flow, f"{base}/{KEPT}/{flow}", run, runs, run.times(runs))
        for flow, (run, runs) in holds_of(pinned).items()
    )


def of_flow(holds: Sequence[Hold], flow: str | None) -> tuple[Hold, ...]:
    """Return holds as a step of a flow meets them."""
    return tuple(hold._replace(mine=hold.flow == flow) for hold in holds)


def others(holds: Sequence[Hold]) -> list[Hold]:
    """Return what is still held for other flows."""
    return [hold for hold in holds if not hold.mine and any(hold.left.amounts)]


def held_against(holds: Sequence[Hold], asked: Tally) -> Tally:
    """Return what counts as used beside what a step asks.

    That is what is held for other flows. A step that takes more than its own flow has
    left would otherwise spoil what remains of that for the others.
    """
    found = [
        remainder(hold.left, asked) if hold.mine else hold.left
        for hold in holds
        if not (hold.mine and asked.fits_within(hold.left))
    ]
    return reduce(add, found, Tally((0,) * len(asked.amounts)))
