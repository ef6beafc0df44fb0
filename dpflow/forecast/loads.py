"""What runs ask of the gates that must admit them, and how many more they admit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

from dpflow.accounting.rules.rule import Filter, Odometer
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import InvalidCost, UnsupportedCost
from dpflow.forecast.counts import (
    NO_END,
    Once,
    Workload,
    WorkloadStep,
    count_admitted,
    repeated,
    round_of,
)
from dpflow.forecast.workload import trace
from dpflow.ledger.decision.gates import Gate


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
        """Say whether a run, counted from 1, is admitted after those before it."""
        before = self.spent.times(run - 1)
        return all(self.account.admits(before + peak) for peak in self.peaks)

    def used_after(self, runs: int) -> float | None:
        """Return the share of a filter's threshold that is used after some runs."""
        rule = self.account.rule
        if not isinstance(rule, Filter):
            return None
        total = self.account.used + self.spent.times(runs)
        if self.again is not None:
            total = repeated(self.again, self.account.used, runs)[0]
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
    fewest: int | None = None
    limiting: Load | None = None
    for load in loads:
        count = _runs_of(load)
        if count is not None and (fewest is None or count < fewest):
            fewest, limiting = count, load
    return fewest, limiting


def _runs_of(load: Load) -> int | None:
    if load.renewed:
        return None if load.admits(1) else 0
    if load.again is not None:
        runs = repeated(load.again, load.account.used)[1]
        return runs if runs < NO_END else None
    return count_admitted(load.admits)


def load_of(gate: Gate, workload: Workload, *, renewed: bool = False) -> Load:
    """Price a workload for one gate.

    Raises:
        UnsupportedCost: If the gate has no price for a step.
    """
    pairs, used = [], gate.used
    for step in workload:
        reserved, posted = _asked(gate, step, used)
        pairs.append((reserved, posted, step.times))
        used = used + posted.times(step.times)
    *peaks, spent = trace(pairs, gate.rule.zero())
    kept: list[Tally] = []
    for peak in (spent, *reversed(peaks)):
        if not any(peak.fits_within(other) for other in kept):
            kept.append(peak)
    load = Load(account=gate, spent=spent, peaks=tuple(kept), renewed=renewed)
    if gate.rule.steady:
        return load
    admits = gate._replace(used=gate.rule.zero()).admits
    return replace(load, again=round_of(partial(_asked, gate), admits, workload))


def _asked(gate: Gate, step: WorkloadStep, used: Tally) -> tuple[Tally, Tally]:
    """Return what a step reserves, and posts as a settlement would."""
    cost, outcome, rule = step.cost, step.outcome, gate.rule
    reserved = gate.price(cost, used)
    if outcome is None or gate.size != 1:
        return reserved, reserved
    try:
        if isinstance(rule, Odometer) and gate.halt is None:
            return reserved, rule.charge_realised(cost, outcome, used)
        return reserved, rule.price_realised(cost, outcome, used)
    except (InvalidCost, UnsupportedCost):
        return reserved, reserved
