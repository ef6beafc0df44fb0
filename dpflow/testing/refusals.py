"""Refusals that a test orders: they come from the gates, and are journaled as any."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from dpflow.accounting.costs.base import Cost
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import BudgetRefused
from dpflow.ledger.decision.admit import Reserve
from dpflow.ledger.decision.gates import Gate, charges_of
from dpflow.ledger.model import Decision, State
from dpflow.ledger.records import Request
from dpflow.ledger.rows import MostGranted, Term, name_in_part

_Decide = Callable[[Reserve, State], Decision]
_GatesOf = Callable[[State, Request, Sequence[Term]], list[Gate]]
_WHOLE = ("dataset", "partition", "population")


class _Exhausted(Gate):
    """A gate that has nothing left, whatever its tally says."""

    def admits(self, asked: Tally) -> bool:
        """Refuse."""
        _ = asked
        return False

    def left(self) -> Tally | None:
        """Return nothing, if the theorem has a box."""
        return None if Gate.left(self) is None else self.rule.zero()


@dataclass(slots=True)
class Orders:
    """What a test wants refused.

    Attributes:
        exhausted: Datasets that have nothing left.
        next: Of each of the next charges that are refused, whether as exhausted.
    """

    exhausted: set[str] = field(default_factory=set)
    next: list[bool] = field(default_factory=list)
    _empty: bool = False
    _asked: list[tuple[Gate, Cost]] = field(default_factory=list)

    def asking(self, gates_of: _GatesOf) -> _GatesOf:
        """Return a way to find a step's gates that empties them where ordered."""

        def obeying(
            state: State, request: Request, terms: Sequence[Term]
        ) -> list[Gate]:
            found = gates_of(state, request, terms)
            self._asked += [(gate, request.cost) for gate in found]
            return [_emptied(gate) if self._empty else gate for gate in found]

        return obeying

    def deciding(self, decide: _Decide) -> _Decide:
        """Return a decision that obeys these orders."""

        def obeying(command: Reserve, state: State) -> Decision:
            meant = self._meant(command.request)
            if meant is None:
                return decide(command, state)
            # A decision changes nothing, so that it may be made to see what is asked.
            self._decided(decide, state, command, empty=False)
            if meant and self._asked:
                state = _granted_before(state, command, self._asked)
            decision = self._decided(decide, state, command, empty=True)
            ordered = not self.exhausted & {*command.request.locked}
            if ordered and isinstance(decision.answer, BudgetRefused):
                # A replay has not used up what was ordered for a charge.
                self.next.pop(0)
            return decision

        return obeying

    def _decided(
        self, decide: _Decide, state: State, command: Reserve, *, empty: bool
    ) -> Decision:
        self._empty, self._asked = empty, []
        try:
            return decide(command, state)
        finally:
            self._empty = False

    def _meant(self, request: Request) -> bool | None:
        """Say whether a request is refused as exhausted; None if it is not refused."""
        if self.exhausted & {*request.locked}:
            return True
        return self.next[0] if self.next else None


def _emptied(gate: Gate) -> Gate:
    """Let a gate that has the budget admit nothing in this decision."""
    if gate.kind not in _WHOLE:
        return gate
    return _Exhausted(*gate)


def _granted_before(
    state: State, command: Reserve, asked: Sequence[tuple[Gate, Cost]]
) -> State:
    """Return a state in which as much was granted before.

    Without that, a step is refused and not more.
    """
    step, rows = command.request.step, dict(state.rows)
    for gate, amount in charges_of(asked):
        known = state.granted(step, gate.id)
        highest = amount if known is None else amount.highest(Tally(known))
        book, name = gate.dataset, name_in_part(step, gate.id)
        before = rows.get(("granted", book, name))
        most = before.most if isinstance(before, MostGranted) else {}
        most = {**most, gate.id: highest.amounts}
        rows["granted", book, name] = MostGranted(book, name, most)
    return replace(state, rows=rows)
