"""Refusal of a flow run of which no whole run would fit."""

from __future__ import annotations

from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import BudgetExhausted
from dpflow.ledger.decisions.decision import Author, Decision
from dpflow.ledger.decisions.gates import Gate
from dpflow.ledger.decisions.refusals import Refusal, journaled, refusal_error
from dpflow.ledger.decisions.reserve import without_empty
from dpflow.ledger.requests import Request
from dpflow.ledger.tables.loaded import Rows
from dpflow.ledger.tables.rows import Run


def decide_refusal_of_run(
    rows: Rows, request: Request, gate: Gate, amount: Tally, author: Author
) -> Decision:
    """Refuse the first step of a flow run that cannot end, with an entry.

    Args:
        rows: Rows with the dataset of the gate and the runs of the request.
        request: The first step of the run that would be charged.
        gate: The gate that a whole run would not pass.
        amount: Amount of the rest of a whole run.
        author: Who asks.
    """
    refusal = Refusal(gate, amount, "run")
    error = refusal_error(request, refusal, BudgetExhausted)
    decision = Decision(answer=error)
    runs = [*dict.fromkeys(filter(None, (*request.enclosing_runs, request.flow_run)))]
    body = {
        **author.facts,
        **request.body,
        **without_empty(key_text=request.key_text, runs=runs),
        "cost": error.details["cost"],
        "datasets": request.datasets,
        "partitions": [*request.partitions],
        **journaled(error),
        "account": gate.id,
        "accounts": [gate.id],
        "whole_run": dict(gate.rule.named(amount)),
    }
    decision.append(
        rows.book(gate.dataset),
        "refuse",
        author,
        request.reservation,
        body=body,
        about=(request.reservation, request.step, request.flow, request.flow_run),
    )
    for name in runs:
        row = rows.runs.get((name, gate.dataset)) or Run(
            name, gate.dataset, request.flow
        )
        decision.changes.append(("put_run", row._replace(refusals=row.refusals + 1)))
    return decision
