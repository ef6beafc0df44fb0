"""Rules of accounts, as the term of a dataset pins them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from dpflow.accounting import make_filter, make_odometer
from dpflow.accounting.rules.rule import Rule
from dpflow.accounting.solving import before_solving

#: Kinds of gates that a flow adds, in the order of their decisions.
OF_FLOW = ("flow", "odometer")


def gate_in(gates: Mapping[str, Any], kind: str, name: str) -> Any:
    """Return what a term says of an account's gate; None if it asks for none."""
    path = f"{kind}/{name}" if kind in OF_FLOW else kind
    # Flows without a name in the policy have a common place.
    return gates.get(path, gates.get(kind) if kind in OF_FLOW else None)


#: Kinds of accounts whose gate a change of access may take away or bring back.
OF_SHARES = (*OF_FLOW, "others")
#: The numbers of a gate's rule, with its role, and where it halts.
Asked = tuple[Mapping[str, Any], str | None]


def choose_rule(pinned: Mapping[str, Any], kind: str, name: str) -> Asked | None:
    """Return the rule and halt that a copy asks for; None if it asks for no gate.

    The one place that says which rule a policy means for which account.
    """
    share = pinned["flows"].get(name, {}) if kind in OF_FLOW else {}
    if kind == "odometer":
        numbers = share.get("odometer", pinned["odometer"])
        halt = share.get("halt_at_epsilon")
        return None if numbers is None else ({"role": "odometer", **numbers}, halt)
    numbers = pinned["filter"]
    if kind == "flow":
        per_flow = None if name in pinned["flows"] else pinned.get("each")
        numbers = share.get("filter", per_flow)
    if kind == "others":
        numbers = pinned.get("others")
    if kind == "dataset":
        # All partitions by time together have a cap of their own, if any.
        numbers = pinned.get("whole") or numbers
    return None if numbers is None else ({"role": "filter", **numbers}, None)


@lru_cache(maxsize=512)
def rule_of(text: str) -> Rule:
    """Make a rule from its pinned text.

    A threshold is the pinned or the newly solved one, whichever is lower: a later
    solver cannot raise what a term was opened with.
    """
    before_solving(lambda: rule_of(text))
    pinned = json.loads(text)
    is_filter = pinned.pop("role") == "filter"
    return make_filter(**pinned) if is_filter else make_odometer(**pinned)
