"""Carving: one ledger charges a part of its budget for another one to spend."""

from __future__ import annotations

import uuid
from dataclasses import asdict

from dpflow.accounting.costs import ApproxDP
from dpflow.exceptions import BudgetRefused, ConfigurationError
from dpflow.ledger.account import now
from dpflow.ledger.approval import check_officer
from dpflow.ledger.decide import check_relation
from dpflow.ledger.gates import gates_of, terms_of
from dpflow.ledger.grants import Grant
from dpflow.ledger.kernel import Ledger
from dpflow.ledger.operations import Charge, post, told
from dpflow.ledger.records import Request
from dpflow.policy import Policy
from dpflow.rounding import number_text

_STEP = "carved for another ledger"


def carve(
    ledger: Ledger,
    policy: Policy,
    cost: ApproxDP,
    *,
    taker: str,
    because: str,
    environment: str | None = None,
    populations: tuple[Policy, ...] = (),
) -> tuple[Grant, list[Charge]]:
    """Charge a part of a dataset's budget in full, for ever, and grant it.

    Args:
        ledger: The one that governs the data source.
        policy: The dataset's.
        cost: What the other ledger may lose in all its terms together.
        taker: Id of the other ledger.
        because: Why, for the journal.
        environment: What the other ledger serves; None for any.
        populations: Of the population that the dataset belongs to.

    Raises:
        ConfigurationError: If the policy names no source, another ledger governs it,
            or the dataset is divided.
        BudgetRefused: If so much is not left; nothing is charged.
        UnsupportedCost: If the theorem has no price for an (epsilon, delta)-DP step.
        PolicyNotApplied: If officers are named and this is none of them.
    """
    source = _checked_source(ledger, policy, taker)
    grant = Grant(
        source=source,
        unit=policy.unit,
        relation=policy.relation,
        epsilon=number_text(cost.epsilon),
        delta=number_text(cost.delta),
        giver=ledger.id,
        taker=taker,
        environment=environment,
        because=because,
        at=now(),
    )
    request = Request(
        reservation=uuid.uuid4().hex,
        owner="operator",
        policies=(policy,),
        populations=populations,
        cost=cost,
        step=_STEP,
    )
    check_relation(request)
    conditions = ledger.conditions
    body = {
        **conditions.facts,
        "because": because,
        "evidence_sha256": grant.digest,
        "grant": asdict(grant),
        "cost": cost.describe(),
        "step": _STEP,
        "flow": None,
        "release_key": None,
    }
    with ledger.writing(request.locked, guarded=True) as session:
        terms = terms_of(
            session,
            request,
            applies=conditions.applies_policies,
            facts=conditions.facts,
        )
        who = str(conditions.facts.get("who", ""))
        check_officer(terms[0].officers, policy.dataset, who, "carve its budget")
        gates = gates_of(session, request, terms, conditions.facts)
        amounts = [gate.price(cost) for gate in gates]
        for gate, amount in zip(gates, amounts, strict=True):
            if not gate.account.admits(amount):
                raise _too_much(policy, cost, gate.account.id)
        moved = [
            (post(session, gate.account, "prior", amount, body), amount)
            for gate, amount in zip(gates, amounts, strict=True)
        ]
    charges = told(ledger, moved)
    ledger.sources.register(grant)
    return grant, charges


def _checked_source(ledger: Ledger, policy: Policy, taker: str) -> str:
    """Return the source of a policy that may be carved here for a ledger."""
    if policy.source is None:
        what = "names no `source`, so that no other ledger would be refused"
    elif policy.partition is not None:
        what = "divides it, and a part cannot be carved from a divided dataset"
    elif taker == ledger.id:
        what = "is governed by this very ledger; --to takes the id of another one"
    elif (governor := ledger.sources.governor(policy.source)) != ledger.id:
        what = f"is governed by ledger {governor}: carve there"
    else:
        return policy.source
    msg = f"nothing was carved: the policy of dataset {policy.dataset!r} {what}"
    raise ConfigurationError(msg)


def _too_much(policy: Policy, cost: ApproxDP, account: str) -> BudgetRefused:
    msg = (
        f"nothing was carved: {cost!r} is more than account {account!r} of dataset "
        f"{policy.dataset!r} has left. `dpflow status {policy.dataset}` shows it."
    )
    return BudgetRefused(msg, dataset=policy.dataset, step=_STEP)
