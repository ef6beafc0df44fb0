"""Refusals that a test orders: they come from the gates, and are journaled as any."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import BudgetExhausted, BudgetRefused
from dpflow.ledger.decision.gates import Gate, gates_of
from dpflow.ledger.decision.refusal import Refusal, refusal_error
from dpflow.ledger.records import Request
from dpflow.ledger.rows import Term
from dpflow.ledger.state import State

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
        given: What was answered, by reservation.
    """

    exhausted: set[str] = field(default_factory=set)
    next: list[bool] = field(default_factory=list)
    given: dict[str, bool] = field(default_factory=dict)

    def of(self, request: Request) -> bool | None:
        """Return whether a step is refused as exhausted; None if it is not refused.

        The answer to a reservation stays, for the ledger may decide it again.
        """
        if self.exhausted & {*request.locked}:
            return True
        if self.next and request.reservation not in self.given:
            self.given[request.reservation] = self.next.pop(0)
        return self.given.get(request.reservation)

    def gates(
        self, state: State, request: Request, terms: Sequence[Term]
    ) -> list[Gate]:
        """Return the gates of a step, without a budget where ordered."""
        gates = gates_of(state, request, terms)
        if self.of(request) is None:
            return gates
        return [_Exhausted(*g) if g.kind in _WHOLE else g for g in gates]

    def error(self, refusal: Refusal, kind: type[BudgetRefused]) -> BudgetRefused:
        """Build the error of a refusal, of the kind that was ordered."""
        if isinstance(refusal.account, _Exhausted) and self.of(refusal.request):
            kind = BudgetExhausted
        return refusal_error(refusal, kind)
