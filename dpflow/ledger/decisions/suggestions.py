"""What fits: the sums of windows, a later part of them, and more noise."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

from dpflow.accounting.costs.base import Cost
from dpflow.accounting.rules.tally import Tally
from dpflow.accounting.rules.windows import most_in_window
from dpflow.accounting.searches import least_noise
from dpflow.accounting.solving import before_solving
from dpflow.exceptions import UnsupportedCost
from dpflow.interrupts import without_interrupts
from dpflow.ledger.decisions.gates import Gate
from dpflow.ledger.decisions.windows import with_use_near
from dpflow.ledger.tables.loaded import Rows
from dpflow.periods import name_at, position_of


def with_parts_near(rows: Rows, gate: Gate, parts: Sequence[str] = ()) -> Gate:
    """Return a gate of windows with what was charged around its part.

    Args:
        rows: Rows with the accounts of the parts around it.
        gate: The gate; one without windows is returned as it is.
        parts: Of a step.
    """
    if gate.window is None:
        return gate
    positions, (length, position, *_) = [*map(position_of, parts)], gate.window
    # A refusal names a later part that fits.
    near = with_use_near(rows, gate.id, gate.window, ahead=length if parts else 0)
    size = most_in_window(positions, position, length) if parts else gate.size
    return gate._replace(size=size, window=near)


def in_windows(pairs: Sequence[tuple[Gate, Tally]]) -> list[tuple[Gate, Tally]]:
    """Return the same with the sums of fullest windows, the step's parts included.

    Args:
        pairs: Each account of a request once, with its amount.
    """
    families: dict[tuple[str, str], dict[int, Tally]] = {}
    for gate, amount in pairs:
        if gate.window is not None:
            families.setdefault(gate.family, {})[gate.window.position] = amount
    if not families:
        return [*pairs]
    with_rest = list[tuple[Gate, Tally]]()
    for gate, amount in pairs:
        if gate.window is not None:
            neighbours = gate.window.sum_others(gate.used, families[gate.family])
            gate = gate._replace(neighbours=neighbours)  # noqa: PLW2901
        with_rest.append((gate, amount))
    return with_rest


def first_fitting_part(pairs: Sequence[tuple[Gate, Tally]]) -> str | None:
    """Return the first later part from which windows admit a request again.

    Args:
        pairs: Gates of `in_windows`, with their amounts.

    Returns:
        The first part of the request if it reads the same number of later parts; None
        if it fits within one length of a window nowhere, or if parts of a dataset
        without windows are charged as well.
    """
    if any(gate.partition and gate.window is None for gate, _ in pairs):
        return None
    gates = [(gate, gate.window, amount) for gate, amount in pairs if gate.window]
    first = min(gates, key=lambda triple: triple[1].position, default=None)
    for later in range(1, first[1].length + 1) if first else ():
        if any(window.position + later in window.overdrawn for _, window, _ in gates):
            continue
        moved = []
        for gate, window, amount in gates:
            there = window._replace(position=window.position + later)
            used = dict(window.used).get(there.position, gate.rule.zero())
            moved.append((gate._replace(used=used, window=there), amount))
        if first and all(gate.admits(amount) for gate, amount in in_windows(moved)):
            return name_at(first[0].partition, first[1].position + later)
    return None


@lru_cache(maxsize=64)
def fitting_factor(gates: tuple[Gate, ...], cost: Cost) -> Fraction | None:
    """Return by how much the noise must grow for every gate to admit a request.

    It is solved, and remembered while nothing else is used.

    Args:
        gates: The gates without their rows.
        cost: The cost as it was requested.

    Returns:
        A factor within about 1 % of the smallest, or None if none up to 1e6 fits.
    """
    before_solving(lambda: fitting_factor(gates, cost))

    def fits(factor: Fraction) -> bool:
        try:
            smaller = cost.noisier(factor).round_noise()
            pairs = in_windows([(gate, gate.price(smaller)) for gate in gates])
            return all(gate.admits(amount) for gate, amount in pairs)
        except without_interrupts(ValueError, UnsupportedCost):
            return False

    high = least_noise(fits, low=1, high=2, most=10**6, close=Fraction(101, 100))
    if high is None:
        return None
    # Three digits, upwards, unless that is too large: the printed factor must fit.
    step = Fraction(10) ** (len(str(int(high))) - 3)
    rounded = -(-high // step) * step
    return rounded if fits(rounded) else high
