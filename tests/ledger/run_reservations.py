"""Requests of run reservations and of the steps that draw from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dpflow import PureDP
from dpflow.accounting.costs.base import Cost
from dpflow.accounting.costs.composed import Composed
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.records import Granted, Request
from dpflow.policy import Policy
from tests.ledger.support import BASIC, request

RUN = "run/1"


def whole(
    ledger: Ledger,
    costs: Sequence[Cost | str],
    *,
    run: str = RUN,
    policies: Sequence[Policy] = (BASIC,),
    **fields: Any,
) -> Request:
    """Make the request of a run's reservation; a text stands for an epsilon."""
    priced = [PureDP(epsilon=c) if isinstance(c, str) else c for c in costs]
    planned = tuple(
        request(ledger, cost, policies=policies, **fields) for cost in priced
    )
    values = {"step": "preflight", **fields}
    return request(
        ledger,
        Composed(*priced),
        policies=policies,
        covers=run,
        planned=planned,
        **values,
    )


def held_run(ledger: Ledger, costs: Sequence[Cost | str], **fields: Any) -> str:
    """Hold a run and return its run reservation's id; anything but a grant fails."""
    answer = ledger.reserve(whole(ledger, costs, **fields))
    assert isinstance(answer, Granted)
    return answer.reservation


def drawn(ledger: Ledger, cost: Cost | str = "0.1", **fields: Any) -> Granted:
    """Reserve a step of the run; anything but a grant fails."""
    answer = ledger.reserve(request(ledger, cost, **{"preflights": (RUN,), **fields}))
    assert isinstance(answer, Granted)
    return answer
