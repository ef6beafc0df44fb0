"""How many more runs fit: one counter for every gate, command and theorem."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import groupby
from typing import Any

from dpflow.accounting import Filter, make_filter
from dpflow.accounting.costs.base import Cost, Outcome, Settling
from dpflow.accounting.costs.planned import PlannedNoise
from dpflow.accounting.costs.text import cost_from_text
from dpflow.accounting.rules.tally import Tally
from dpflow.accounting.rules.tightening import same_prices
from dpflow.accounting.searches import NO_END, Once, most_steps, repeat
from dpflow.exceptions import InvalidCost, UnsupportedCost
from dpflow.ledger import PartWindows
from dpflow.ledger.decisions.gates import Gate, check_holds, covers_flow, preview_gate
from dpflow.ledger.views.runs import JournalCharge, RunCharge
from dpflow.periods import PERIODS
from dpflow.policy.reserved import charges_others
from dpflow.policy.windows import window_length
from dpflow.rounding import number_from_text

Pinned = Mapping[str, Any]

#: Name of a partition without an account.
_NEXT = "next"


@dataclass(frozen=True, slots=True)
class WorkloadStep:
    """A step of a workload.

    Attributes:
        cost: Its worst case, which is reserved.
        times: How often it runs.
        outcome: How it comes out each time: sub-steps that ran, or the cell of its
            output. None: it settles in full.
    """

    cost: Cost
    times: int = 1
    outcome: Outcome | None = None


Workload = tuple[WorkloadStep, ...]


def merge(steps: Iterable[WorkloadStep]) -> Workload:
    """Write equal steps in a row as one."""
    groups = groupby(steps, key=lambda step: (step.cost, step.outcome))
    return tuple(
        WorkloadStep(cost, sum(step.times for step in group), outcome)
        for (cost, outcome), group in groups
    )


def plan_workload(pinned: Pinned, flow: str | None) -> Workload:
    """Return one run of a flow by its plan, at sensitivity 1; empty without a plan."""
    share = pinned["flows"].get(flow, {})
    noise = share.get("noise", {})
    return merge(
        WorkloadStep(
            cost_from_text(step["cost"])
            if "cost" in step
            else PlannedNoise.of_unit(step["mechanism"]).at(
                number_from_text(noise[name])
            )
        )
        for name, step in share.get("plan", {}).get("steps", {}).items()
    )


def workload_of(steps: Iterable[JournalCharge]) -> Workload:
    """Return the charged steps of a run as a workload, as they came out.

    Raises:
        InvalidCost: If one has a mechanism that this process does not know.
    """
    return merge(WorkloadStep(step.cost, 1, _outcome(step)) for step in steps)


def _outcome(step: JournalCharge) -> Outcome | None:
    """Return the outcome by which a step settled; None if it settled in full."""
    cost = step.cost
    reported: Outcome | None = step.body.get("reported")
    if reported is None or not isinstance(cost, Settling):
        return None
    try:
        cost.realised(reported)
    except InvalidCost:
        return None
    return reported


# Counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What each run asks of one account.

    Attributes:
        account: Its gate, as it stands.
        spent: What a run leaves behind.
        peaks: What must be admitted within a run; one step after the other, each with
            its worst case.
        renewed: Whether every run has such an account to itself, as with a partition
            for each week.
        again: What a run makes of what is used, where prices depend on that.
    """

    account: Gate
    spent: Tally
    peaks: tuple[Tally, ...]
    renewed: bool = False
    again: Once | None = None

    def admits(self, run: int) -> bool:
        """Return True if a run, counted from 1, is admitted after those before it."""
        before = self.spent.times(run - 1)
        return all(self.account.admits(before + peak) for peak in self.peaks)

    def count(self) -> int | None:
        """Return the number of runs that the account admits; None: without end."""
        if self.account.window is not None:
            return self._count_in_windows(self.account.window)
        if self.renewed:
            return None if self.admits(1) else 0
        if self.again is None:
            return most_steps(self.admits)
        runs = repeat(self.again, self.account.used)[1]
        return runs if runs < NO_END else None

    def _count_in_windows(self, window: PartWindows) -> int | None:
        """Count runs of one later part each; two lengths of them show all windows."""
        used, zero = dict(window.used), self.account.rule.zero()
        for run in range(2 * window.length):
            there = PartWindows(window.length, window.position + run, (*used.items(),))
            at = self.account._replace(used=zero, neighbours=there.sum_others(zero, {}))
            if not all(map(at.admits, self.peaks)):
                return run
            used[there.position] = self.spent
        return None

    def share_used_after(self, runs: int) -> float | None:
        """Return the share of a filter's threshold that is used after some runs."""
        rule = self.account.rule
        if not isinstance(rule, Filter):
            return None
        total = self.account.total + self.spent.times(runs)
        if self.again is not None:
            total = repeat(self.again, self.account.used, runs)[0]
        return rule.used_fraction(total)


def runs_left(loads: Iterable[Load]) -> tuple[int | None, Load | None]:
    """Count the runs that all gates admit from where they stand.

    Exact: tallies are added as they will be posted, and a run counts if each of its
    steps is admitted at its worst case.

    Args:
        loads: What each run asks of every gate.

    Returns:
        The count, None if there is no end to them; and what refuses first.
    """
    counts = [(load.count(), load) for load in loads]
    ends = [(count, load) for count, load in counts if count is not None]
    return min(ends, key=lambda end: end[0], default=(None, None))


def runs_of(rule: Filter, workload: Workload) -> int | None:
    """Count the runs of a workload that an empty tally admits; None: without end.

    Raises:
        UnsupportedCost: If the theorem has no sound price for a step.
    """
    gate = Gate("", "", "dataset", "", "", rule, None, rule.zero())
    return load_of(gate, workload).count()


def steps_that_fit(gate: Gate, cost: Cost) -> tuple[bool, int | None]:
    """Return whether a gate has a price for a step, and the count; None: without end.

    An odometer that halts nothing counts what it cannot price.
    """
    try:
        gate.rule.price(cost)
    except UnsupportedCost:
        return False, None
    return True, load_of(gate, (WorkloadStep(cost),)).count()


def load_of(gate: Gate, workload: Workload, *, renewed: bool = False) -> Load:
    """Price a workload for one gate.

    Raises:
        UnsupportedCost: If the gate has no price for a step.
    """
    spent, peaks = gate.rule.zero(), []
    for step in workload:
        reserved, posted = _amounts(gate, step, gate.used + spent)
        peaks.append(spent + posted.times(step.times - 1) + reserved)
        spent = spent + posted.times(step.times)
    largest = [spent]
    for peak in reversed(peaks):
        if not any(peak.fits_within(other) for other in largest):
            largest.append(peak)
    load = Load(account=gate, spent=spent, peaks=tuple(largest), renewed=renewed)
    if gate.rule.steady:
        return load
    return replace(load, again=_round(gate._replace(used=gate.rule.zero()), workload))


def _round(gate: Gate, workload: Workload) -> Once:
    """Return what a whole workload makes of what is used."""

    def once(step: WorkloadStep, used: Tally) -> Tally | None:
        reserved, posted = _amounts(gate, step, used)
        return used + posted if gate.admits(used + reserved) else None

    def all_steps(used: Tally) -> Tally | None:
        for step in workload:
            used, fit = repeat(partial(once, step), used, step.times)
            if fit < step.times:
                return None
        return used

    return all_steps


def _amounts(gate: Gate, step: WorkloadStep, used: Tally) -> tuple[Tally, Tally]:
    """Return what a step reserves, and posts as a settlement would."""
    reserved = gate.price(step.cost, used)
    if step.outcome is None:
        return reserved, reserved
    try:
        return reserved, gate.price(step.cost, used, step.outcome)
    except (InvalidCost, UnsupportedCost):
        return reserved, reserved


# Gates of a flow


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
        pinned: What `Policy.to_pinned` returned, from the file or from the ledger.
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
    """Yield the gates of a run, and whether each run has a new one.

    Where parts are no periods, the part that the next run reads is unknown: each part
    with an account counts.
    """
    by = pinned["partition"]["by"] if "partition" in pinned else None
    places = [(pinned, "partition" if by else "dataset", "")]
    if "whole" in pinned:
        places.insert(0, (pinned, "dataset", ""))
    if charges_others(pinned, flow):
        places.append((pinned, "others", ""))
    if flow is not None and covers_flow(pinned, flow):
        places += [(pinned, "flow", flow), (pinned, "odometer", flow)]
    if population is not None:
        places.append((population, "population", ""))
    for copy, kind, name in places:
        renewed = by in PERIODS and kind in ("partition", "flow", "odometer")
        standing = [
            gate
            for gate in accounts.values()
            if (gate.dataset, gate.kind) == (copy["dataset"], kind)
            if name in ("", gate.name)
        ]
        fresh = preview_gate(copy, kind, _NEXT if kind == "partition" else name)
        if fresh is not None and renewed and (length := window_length(copy)):
            used = {view.window.position: view.used for view in standing if view.window}
            fresh = in_next_part(fresh, length, used)
        if fresh is not None:
            yield from (
                (gate, renewed) for gate in (not renewed and standing) or [fresh]
            )


def in_next_part(gate: Gate, length: int, used: Mapping[int, Tally]) -> Gate:
    """Return a gate of the first part after all charged ones, in its windows.

    Args:
        gate: Of no part yet, as if nothing was charged to it.
        length: Number of parts of a window.
        used: Amounts of charged parts, by place.
    """
    window = PartWindows(length, max(used, default=0) + 1, tuple(used.items()))
    return gate._replace(window=window, neighbours=window.sum_others(gate.used, {}))


def empty_gate(gate: Gate) -> Gate:
    """Return a gate as if nothing was charged to it, of no account."""
    window = gate.window and gate.window._replace(used=(), overdrawn=())
    gate = gate._replace(id="", partition="", row=None, state="open", size=1)
    return gate._replace(used=gate.rule.zero(), window=window, neighbours=None)


def window_loads(charges: Iterable[RunCharge]) -> list[Load]:
    """Return what another run asks of windows, as if it read one later part.

    Runs that read several parts, one further part each, add as much to a window.

    Args:
        charges: What a run did to each account.
    """
    families: dict[tuple[str, str], list[tuple[PartWindows, RunCharge]]] = {}
    for charge in charges:
        if charge.gate.window is not None:
            own = families.setdefault(charge.gate.family, [])
            own.append((charge.gate.window, charge))
    loads = []
    for own in families.values():
        (length, _, used, _), newest = max(own, key=lambda pair: pair[0].position)
        gate, zero = empty_gate(newest.gate), newest.gate.rule.zero()
        tops = [reduce(Tally.highest, charge.peaks) for _, charge in own]
        loads.append(
            Load(
                account=in_next_part(gate, length, dict(used)),
                spent=sum((charge.spent for _, charge in own), zero),
                peaks=(sum(tops, zero),),
                renewed=True,
            )
        )
    return loads


def reach_of_shares(pinned: Pinned) -> float | None:
    """Return the part of a dataset's budget that the flows' shares can use.

    Epsilons of shares do not add up. Thresholds add up, such as mu squared, where all
    filters give a step the same price.

    Args:
        pinned: What `Policy.to_pinned` returned, from the file or from the ledger.

    Returns:
        Above 1 if they can use more than there is; None if no flow has a share, or if
        thresholds do not add up.
    """
    rule = make_filter(**pinned["filter"])
    filters = [share.get("filter") for share in pinned["flows"].values()]
    shares = [make_filter(**options) for options in filters if options is not None]
    limits = [share.limit for share in shares if same_prices(share, rule)]
    thresholds = [limit for limit in limits if limit is not None]
    if not shares or len(thresholds) < len(shares):
        return None
    return rule.used_fraction(sum(thresholds, rule.zero()))
