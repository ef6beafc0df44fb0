"""The gates that a policy asks for: what a term pins of them, and each as it begins.

`rows.asked_for` says which rule and halt a policy means for which account.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpflow.accounting.rules.rule import Filter, solved_thresholds
from dpflow.ledger.decision.gates import Gate
from dpflow.ledger.entry import canonical
from dpflow.ledger.model import rule_of
from dpflow.ledger.rows import OF_FLOW, Asked, asked_for
from dpflow.policy.population import PREFIX
from dpflow.rounding import number_from_text


def gates_text(pinned: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rule and halt of every gate of a copy, with solved thresholds.

    By "dataset", "partition", "population", "odometer" for flows that are not named,
    "others" where shares are reserved,
    "flow/NAME" and "odometer/NAME" for those that are.
    """
    places = [("dataset", ""), ("partition", ""), ("population", ""), ("odometer", "")]
    places += [("others", "")] if "others" in pinned else []
    places += [(kind, name) for name in pinned["flows"] for kind in OF_FLOW]
    return {
        f"{kind}/{name}" if name else kind: _gate_text(asked_for(pinned, kind, name))
        for kind, name in places
    }


def announced_gate(pinned: Mapping[str, Any], kind: str, name: str) -> Gate | None:
    """Return the gate that a first charge would meet, of no ledger yet.

    Args:
        pinned: What `Policy.pinned` returned, from the file or from the ledger.
        kind: As of a gate.
        name: Of the flow or partition.

    Returns:
        None if the policy asks for no such gate.
    """
    asked = asked_for(pinned, kind, name)
    if asked is None:
        return None
    rule = rule_of(canonical(asked[0]))
    dataset, text = str(pinned["dataset"]), asked[1]
    halt = None if text is None else number_from_text(text)
    return Gate("", dataset, kind, name, "", rule, halt, rule.zero())


def announced_gates(pinned: Mapping[str, Any]) -> list[Gate]:
    """Return the gates that a policy names, each as if nothing was charged to it."""
    places = [(kind, name) for name in pinned["flows"] for kind in OF_FLOW]
    if "others" in pinned:
        places.insert(0, ("others", ""))
    if "whole" in pinned:
        places.insert(0, ("dataset", ""))
    if "partition" in pinned:
        first = ("partition", f"each {pinned['partition']['by']}")
    else:
        population = str(pinned["dataset"]).startswith(PREFIX)
        first = ("population" if population else "dataset", "")
    found = (announced_gate(pinned, *place) for place in (first, *places))
    return [gate for gate in found if gate is not None]


def _gate_text(asked: Asked | None) -> dict[str, Any] | None:
    if asked is None:
        return None
    made = rule_of(canonical(asked[0]))
    told: dict[str, Any] = {"role": asked[0]["role"], **made.parameters()}
    thresholds = solved_thresholds(made) if isinstance(made, Filter) else None
    if thresholds is not None:
        told["thresholds"] = thresholds
    return {"rule": canonical(told), "halt": asked[1]}
