"""The gates that a flow's next run has to pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dpflow.forecast.counts import Workload
from dpflow.forecast.loads import Load, load_of
from dpflow.ledger.decision.admit import check_holds
from dpflow.ledger.decision.announced import announced_gate
from dpflow.ledger.decision.gates import Gate, covers_flow
from dpflow.policy.pinned import TIMES
from dpflow.policy.reserved import charges_others

Pinned = Mapping[str, Any]

#: What a partition is called that no run has touched yet.
_NEXT = "next"


def loads_of(
    pinned: Pinned,
    flow: str | None,
    workload: Workload,
    *,
    accounts: Mapping[str, Gate] | None = None,
    population: Pinned | None = None,
) -> list[Load]:
    """Price a workload for every gate of a flow on a dataset.

    Args:
        pinned: What `Policy.pinned` returned, from the file or from the ledger.
        flow: The flow that runs it; None for one that has no share of its own.
        workload: The steps of one run.
        accounts: The gates of the term that governs, by the ids of their accounts;
            what is not among them was not charged yet. Default: none, so that the
            budget is whole.
        population: The same as `pinned` for the population of the dataset.

    Raises:
        UnsupportedCost: If a gate has no price for a step, or a step's price does not
            hold under the dataset's relation.
    """
    for step in workload:
        check_holds(step.cost, pinned["dataset"], pinned["relation"])
    return [
        load_of(gate, workload, renewed=renewed)
        for gate, renewed in _gates(pinned, flow, accounts or {}, population)
    ]


def _gates(
    pinned: Pinned,
    flow: str | None,
    accounts: Mapping[str, Gate],
    population: Pinned | None,
) -> Iterator[tuple[Gate, bool]]:
    if "partition" not in pinned:
        for kind, name in _kinds(pinned, "dataset", flow):
            yield from _standing(pinned, kind, name, accounts)
    else:
        if "whole" in pinned:
            yield from _standing(pinned, "dataset", "", accounts)
        yield from _in_parts(pinned, flow, accounts)
    if population is not None:
        yield from _standing(population, "population", "", accounts)


def _kinds(pinned: Pinned, whole: str, flow: str | None) -> list[tuple[str, str]]:
    first = [(whole, "")]
    if charges_others(pinned, flow):
        first.append(("others", ""))
    if flow is None or not covers_flow(pinned, flow):
        return first
    return [*first, ("flow", flow), ("odometer", flow)]


def _standing(
    pinned: Pinned,
    kind: str,
    name: str,
    accounts: Mapping[str, Gate],
) -> Iterator[tuple[Gate, bool]]:
    """Yield a gate as it stands, if the policy asks for it."""
    dataset = str(pinned["dataset"])
    for gate in accounts.values():
        if (gate.dataset, gate.kind, gate.name) == (dataset, kind, name):
            yield gate, False
            return
    fresh = announced_gate(pinned, kind, name)
    if fresh is not None:
        yield fresh, False


def _in_parts(
    pinned: Pinned, flow: str | None, accounts: Mapping[str, Gate]
) -> Iterator[tuple[Gate, bool]]:
    """Yield the gates of one part: a new one each time, or the fullest.

    Where parts are no periods, nobody knows which one the next run reads.
    """
    renewed = pinned["partition"]["by"] in TIMES
    for kind, name in _kinds(pinned, "partition", flow):
        standing = [
            a
            for a in accounts.values()
            if a.kind == kind and (a.partition if name else True)
            if name in ("", a.name)
        ]
        fresh = announced_gate(pinned, kind, name or _NEXT)
        if fresh is None:
            continue
        if renewed or not standing:
            yield fresh, renewed
        else:
            yield from ((gate, False) for gate in standing)
