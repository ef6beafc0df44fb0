"""Whole runs: a flow run begins only if the rest of one that ended before would fit.

Examples are the last completed runs of the flow, in any term, priced under today's. One
that fits is enough: an ordinary week is not held to the extra steps of a month's end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from dpflow.accounting.costs.base import Cost, Outcome, cost_from_description
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import InvalidCost, UnsupportedCost
from dpflow.interrupts import suppress
from dpflow.ledger import Charge, Ledger, split_account
from dpflow.ledger.decisions.gates import Gate
from dpflow.ledger.requests import Request, describe_cost
from dpflow.ledger.views import Reading, open_reading

#: Number of completed runs that are examples, and of charges among which they are.
_EXAMPLES, _CHARGES = 5, 1000
#: Gates of parts are not asked: the next part has a budget of its own.
_WHOLE = ("dataset", "population", "others", "flow", "odometer")


class Lack(NamedTuple):
    """A gate that does not admit the rest of a whole run.

    Attributes:
        gate: The gate as it stands.
        amount: Amount of the rest of the run.
    """

    gate: Gate
    amount: Tally


def find_lack(
    ledger: Ledger,
    request: Request,
    declared: Mapping[str, Sequence[Cost]],
    replayed: Mapping[str, int],
) -> Lack | None:
    """Return what no whole run of a flow has room for; None if one fits.

    Args:
        ledger: The ledger.
        request: The first step of the run that would be charged.
        declared: Costs that steps of this process declare, by name: each flow may have
            a step of that name.
        replayed: Number of replays of this run, by name of the step.

    Returns:
        Gate and amount of the newest example; None as well without an example.
    """
    lacks = list[Lack]()
    with open_reading(ledger) as reading:
        if read_runs(reading, [str(request.flow_run)]):
            # A run that was resumed, or retried, has begun.
            return None
        for charges in find_examples(reading, request, declared):
            lack = find_lack_of(reading, without_replayed(charges, replayed))
            if lack is None:
                return None
            lacks.append(lack)
    return lacks[0] if lacks else None


def find_examples(
    reading: Reading, request: Request, declared: Mapping[str, Sequence[Cost]]
) -> Iterator[list[Charge]]:
    """Yield the charges of completed runs that are like this one, the newest first."""
    dataset = request.datasets[0]
    where = {"dataset": dataset, "flow": request.flow, "charges": _CHARGES}
    names = [
        name for (name,) in reading.ask("read_completed_runs", **where, runs=_EXAMPLES)
    ]
    by_run = dict[str, list[Charge]]()
    for charge in read_runs(reading, names):
        by_run.setdefault(str(charge.run), []).append(charge)
    first = request.step, describe_cost(request.cost)
    for name in names:
        charges = by_run[name]
        costs = [(charge.step, charge.request["cost"]) for charge in charges]
        ended = all(charge.state != "open" for charge in charges)
        # Changed noise is not held to old runs.
        same = all(
            step not in declared or cost in map(describe_cost, declared[step])
            for step, cost in costs
        )
        if ended and same and first in costs:
            yield [charge for charge in charges if charge.state != "void"]


def read_runs(reading: Reading, runs: Sequence[str]) -> list[Charge]:
    """Read the charges of flow runs, each once, in the order of their reservations."""
    charges = dict[str, Charge]()
    for columns in reading.ask("read_charges_of_runs", runs=[*runs]) if runs else ():
        charge = Charge.from_columns(tuple(columns))
        charges.setdefault(charge.id, charge)
    return [*charges.values()]


def without_replayed(
    charges: Sequence[Charge], replayed: Mapping[str, int]
) -> list[Charge]:
    """Return charges but for those of steps that this run has replayed."""
    remaining, drawn = Counter(replayed), list[Charge]()
    for charge in charges:
        if remaining[charge.step] > 0:
            remaining[charge.step] -= 1
        else:
            drawn.append(charge)
    return drawn


def find_lack_of(reading: Reading, charges: Sequence[Charge]) -> Lack | None:
    """Return what has no room for charges like these, made now; None if they fit."""
    spent, peaks, gates = dict[str, Tally](), dict[str, Tally](), dict[str, Gate]()
    lacking = list[str]()
    for charge in charges:
        with suppress(InvalidCost, UnsupportedCost):
            cost = cost_from_description(charge.request["cost"])
            for gate, size in find_gates(reading, charge):
                gates[gate.id] = gate
                sized = gate._replace(size=size)
                zero = gate.rule.zero()
                before = spent.get(gate.id, zero)
                used = gate.used + before
                peak = before + sized.price(cost, used)
                peaks[gate.id] = peaks.get(gate.id, zero).highest(peak)
                if not gate.admits(peak):
                    lacking.append(gate.id)
                outcome: Outcome | None = charge.realised
                spent[gate.id] = before + sized.price(cost, used, outcome)
    return Lack(gates[lacking[0]], peaks[lacking[0]]) if lacking else None


def find_gates(reading: Reading, charge: Charge) -> list[tuple[Gate, int]]:
    """Return the gates of the newest terms that a charge like this one would meet.

    Each comes with the number of units that the charge touches there.
    """
    units, sizes = charge.request.get("units", {}), dict[str, int]()
    for account in charge.amounts:
        dataset, _, kind, name, _ = split_account(account)
        term = reading.newest(dataset)
        if term is None or kind not in _WHOLE or "/partition/" in account:
            continue
        tail = "" if kind in ("dataset", "population") else f"/{kind}"
        current = f"{term.root}{tail}{f'/{name}' if name else ''}"
        sizes[current] = int(units.get(account, 1))
    return [(gate, sizes[name]) for name, gate in reading.gates(sizes).items()]
