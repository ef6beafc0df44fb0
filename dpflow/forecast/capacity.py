"""How many steps of one kind a gate admits, and which of a flow's gates ends it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dpflow.accounting.costs.base import Cost
from dpflow.accounting.rules.rule import Filter
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import UnsupportedCost
from dpflow.forecast.counts import NO_END, count_admitted, repeated
from dpflow.ledger.decision.gates import Gate


def steps_that_fit(gate: Gate, cost: Cost) -> int | None:
    """Count the identical steps that a gate admits from where it stands.

    Args:
        gate: The gate that decides, alone.
        cost: What each step does.

    Returns:
        The count, or None if there is no end to them.

    Raises:
        UnsupportedCost: If the gate has no price for the cost.
    """
    if not gate.rule.steady:
        bare = gate._replace(used=gate.rule.zero())

        def once(used: Tally) -> Tally | None:
            after = used + gate.price(cost, used)
            return after if bare.admits(after) else None

        count = repeated(once, gate.used)[1]
        return count if count < NO_END else None
    price = gate.price(cost)
    return count_admitted(lambda steps: gate.admits(price.times(steps)))


def is_priced(gate: Gate, cost: Cost) -> bool:
    """Say whether a gate has a price for a cost."""
    try:
        # An odometer that halts nothing counts what it cannot price.
        gate.rule.price(cost)
    except UnsupportedCost:
        return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowGates:
    """A flow that has a share and an odometer that halts it.

    Attributes:
        flow: Its name.
        counts: For each kind of step, how many fit the share and how many the odometer;
            None for no end.
    """

    flow: str
    counts: Sequence[tuple[str, int | None, int | None]]

    @property
    def binds(self) -> str:
        """Which of the two refuses first: "share", "odometer", or "either" of them."""
        found = {
            "odometer" if _less(halt, share) else "share"
            for _, share, halt in self.counts
            if share != halt
        }
        return found.pop() if len(found) == 1 else "either"

    @property
    def text(self) -> str:
        """Which binds, at how many steps, and what to do about the other."""
        told = "; ".join(
            f"{name} {_end(share)} by its share, {_end(halt)} by its odometer"
            for name, share, halt in self.counts
        )
        return f"{self.flow} ({told}): {_ADVICE[self.binds]}"

    def as_json(self) -> dict[str, Any]:
        """Return the same for programs; a count without end is null."""
        counts = [
            {"cost": name, "share": share, "odometer": halt}
            for name, share, halt in self.counts
        ]
        return {"flow": self.flow, "binds": self.binds, "counts": counts}


_ADVICE = {
    "share": "the share always ends it first, so halt_at_epsilon never does: leave it "
    "out, and the odometer only reads.",
    "odometer": "the odometer always halts it first, so the rest of the share is never "
    "used. Leave halt_at_epsilon out and lower the share instead: a share's filter "
    "admits more steps for the same epsilon.",
    "either": "which of them ends it depends on its steps.",
}


def flow_gates(gates: Iterable[Gate], costs: Sequence[Cost]) -> Iterator[FlowGates]:
    """Yield the flows that have both a share and an odometer that halts.

    Args:
        gates: All gates of a policy, with empty tallies.
        costs: The kinds of steps that are counted, as far as both have a price.
    """
    by_flow: dict[str, dict[str, Gate]] = {}
    for gate in gates:
        if gate.kind in ("flow", "odometer"):
            role = "share" if isinstance(gate.rule, Filter) else "odometer"
            by_flow.setdefault(gate.name, {})[role] = gate
    for flow, pair in by_flow.items():
        share, odometer = pair.get("share"), pair.get("odometer")
        if share is None or odometer is None or odometer.halt is None:
            continue
        counts = [
            (repr(cost), steps_that_fit(share, cost), steps_that_fit(odometer, cost))
            for cost in costs
            if is_priced(share, cost) and is_priced(odometer, cost)
        ]
        if counts:
            yield FlowGates(flow=flow, counts=counts)


def _less(one: int | None, other: int | None) -> bool:
    return one is not None and (other is None or one < other)


def _end(count: int | None) -> str:
    return "no end" if count is None else f"{count}"
