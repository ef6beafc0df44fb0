"""Whether a change of a policy asks for runs that the rest of its budget can hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any

from dpflow.accounting.rules.rule import Filter
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import PolicyNotApplied
from dpflow.ledger.decision.announced import announced_gate
from dpflow.ledger.decision.kept import Hold, announced_holds
from dpflow.ledger.model import State
from dpflow.ledger.rows import Account, Term
from dpflow.policy.kept_runs import holds_of, most_runs

_Copy = Mapping[str, Any]


def check_kept(state: State, term: Term, pins: _Copy) -> None:
    """Refuse a copy that keeps more runs than a charged term still holds.

    Args:
        state: With every account of the term.
        term: It governs.
        pins: The copy that would take its copy's place, with the tallies kept.

    Raises:
        PolicyNotApplied: If they do not fit; it says how many do.
    """
    before = term.facts["pinned"]
    same = all(asked(before) == asked(pins) for asked in (holds_of, _filter))
    gate = announced_gate(pins, "dataset", "")
    if same or not holds_of(pins) or gate is None or not isinstance(gate.rule, Filter):
        return
    base = f"{term.book}#{term.number}"
    used = _drawn(gate.rule.zero(), state.account(base))
    holds = [h.after(state.account(h.account)) for h in announced_holds(pins, base)]
    if not gate.rule.admits(_with(used, holds)):
        raise _too_many(state, gate.rule, used, holds, holds_of(before))


def _filter(pins: _Copy) -> object:
    return pins["filter"]


def _drawn(zero: Tally, row: Account | None) -> Tally:
    if row is None:
        return zero
    return Tally(row.settled) + Tally(row.held)


def _with(used: Tally, holds: Sequence[Hold]) -> Tally:
    return reduce(add, (hold.left for hold in holds), used)


def _too_many(
    state: State,
    rule: Filter,
    used: Tally,
    holds: Sequence[Hold],
    before: Mapping[str, tuple[Tally, int]],
) -> PolicyNotApplied:
    """Blame the flow whose hold changes most lately: the last new or larger one."""
    new = [hold for hold in holds if before.get(hold.flow) != (hold.run, hold.runs)]
    blamed = (new or list(holds))[-1]
    others = [hold for hold in holds if hold is not blamed]
    row = state.account(blamed.account)

    def fits(runs: int) -> bool:
        fewer = blamed.of_runs(runs).after(row)
        return rule.admits(_with(used, [*others, fewer]))

    most = most_runs(fits, blamed.runs)
    msg = (
        f"keep: {blamed.runs} holds {blamed.runs_left} more runs of flow "
        f"{blamed.flow!r}, and what was charged in this term leaves too little for "
        f"them: at most keep: {most} fits. Write that or less, or open a new term."
    )
    return PolicyNotApplied(msg, keep=blamed.runs, fits=most)
