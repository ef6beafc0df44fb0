"""Refusals that a test orders: they come from the gates, and are journaled as any."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from dpflow.accounting.tally import Tally
from dpflow.exceptions import BudgetRefused
from dpflow.ledger.account import Account
from dpflow.ledger.database import Session
from dpflow.ledger.gates import Gate, gates_of, terms_of
from dpflow.ledger.owner import Liveness
from dpflow.ledger.records import Answer, Conditions, Request

_Decide = Callable[[Session, Request, Liveness, Conditions], Answer | BudgetRefused]
_WHOLE = ("dataset", "partition", "population")


class _Exhausted(Account):
    """An account that has nothing left, whatever its tally says."""

    def admits(self, asked: Tally) -> bool:
        """Refuse."""
        _ = asked
        return False

    def left(self) -> Tally | None:
        """Return nothing, if the theorem has a box."""
        return None if Account.left(self) is None else self.rule.zero()


@dataclass(slots=True)
class Orders:
    """What a test wants refused.

    Attributes:
        ledger: Id of the only ledger that obeys.
        exhausted: Datasets that have nothing left.
        next: Of each of the next charges that are refused, whether as exhausted.
    """

    ledger: str = ""
    exhausted: set[str] = field(default_factory=set)
    next: list[bool] = field(default_factory=list)

    def deciding(self, decide: _Decide) -> _Decide:
        """Return a decision that obeys these orders before it decides."""

        def obeying(
            session: Session,
            request: Request,
            owners: Liveness,
            conditions: Conditions,
        ) -> Answer | BudgetRefused:
            meant = self._meant(session, request)
            if meant is not None:
                _empty(session, request, conditions, exhausted=meant)
            try:
                answer = decide(session, request, owners, conditions)
            finally:
                _fill_again(session)
            ordered = meant is not None and not self.exhausted & {*request.locked}
            if ordered and isinstance(answer, BudgetRefused):
                # A replay has not used up what was ordered for a charge.
                self.next.pop(0)
            return answer

        return obeying

    def _meant(self, session: Session, request: Request) -> bool | None:
        """Say whether a request is refused as exhausted; None if it is not refused."""
        if session.rows("read_ledger")[0]["ledger_id"] != self.ledger:
            return None
        if self.exhausted & {*request.locked}:
            return True
        return self.next[0] if self.next else None


def _empty(
    session: Session, request: Request, conditions: Conditions, *, exhausted: bool
) -> None:
    """Let the gates that have the budgets admit nothing in this decision."""
    facts: Mapping[str, object] = conditions.facts
    terms = terms_of(session, request, applies=conditions.applies_policies, facts=facts)
    for gate in gates_of(session, request, terms, facts):
        account = gate.account
        if account.kind in _WHOLE:
            session.kept[account.id] = _Exhausted(
                **{name: getattr(account, name) for name in Account.__slots__}
            )
        if exhausted:
            _note_granted(session, request, gate)


def _note_granted(session: Session, request: Request, gate: Gate) -> None:
    """Note a grant of as much before: without one, a step is refused and not more."""
    place = {"account": gate.account.id, "step": request.step}
    asked = gate.price(request.cost)
    rows = session.rows("read_granted", **place)
    highest = asked.highest(Tally.from_text(rows[0]["amount"])) if rows else asked
    session.post("note_granted", **place, amount=highest.to_text())


def _fill_again(session: Session) -> None:
    for name, account in [*session.kept.items()]:
        if isinstance(account, _Exhausted):
            del session.kept[name]
