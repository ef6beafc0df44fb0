"""Refusals that a test orders: the gates refuse, and the journal has the refusals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import BudgetExhausted, BudgetRefused
from dpflow.ledger import Term
from dpflow.ledger.decisions.gates import Gate, gates_of
from dpflow.ledger.decisions.refusals import Refusal, refusal_error
from dpflow.ledger.requests import Request

_WHOLE = ("dataset", "partition", "population")


class _Exhausted(Gate):
    """A gate without a remaining budget, for any tally."""

    def admits(self, amount: Tally) -> bool:  # noqa: ARG002 (refuses any amount)
        """Refuse."""
        return False

    def left(self) -> Tally | None:
        """Return zero, if the theorem has a remaining amount."""
        return None if Gate.left(self) is None else self.rule.zero()


@dataclass(slots=True)
class ForcedRefusals:
    """Charges that a test wants refused.

    Attributes:
        exhausted: Datasets without a remaining budget.
        next: Number of further charges to refuse.
        refused: Reservations of that number; the ledger may decide one again.
    """

    exhausted: set[str] = field(default_factory=set)
    next: int = 0
    refused: set[str] = field(default_factory=set)

    def gates(self, rows: Any, request: Request, terms: Sequence[Term]) -> list[Gate]:
        """Return the gates of a step, exhausted where a refusal is forced."""
        gates = gates_of(rows, request, terms)
        if self.next and request.reservation not in self.refused:
            self.next -= 1
            self.refused.add(request.reservation)
        exhausted = not self.exhausted.isdisjoint(request.locked)
        forced = exhausted or request.reservation in self.refused
        return [_Exhausted(*g) if forced and g.kind in _WHOLE else g for g in gates]

    def error(self, request: Request, refusal: Refusal, kind: Any) -> BudgetRefused:
        """Build the error of a refusal; a forced one is `BudgetExhausted`."""
        kind = BudgetExhausted if isinstance(refusal.gate, _Exhausted) else kind
        return refusal_error(request, refusal, kind)
