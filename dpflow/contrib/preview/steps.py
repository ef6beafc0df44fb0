"""What a change does to the steps: their costs, and how often they fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from dpflow.accounting.costs.base import Cost, relations_of
from dpflow.contrib.preview.scan import FoundStep, Source
from dpflow.exceptions import DpflowError
from dpflow.forecast.capacity import is_priced, steps_that_fit
from dpflow.ledger.decision.announced import announced_gates
from dpflow.ledger.decision.gates import Gate
from dpflow.ledger.views.accounts import account_view
from dpflow.ledger.views.words import account_title
from dpflow.policy import Policy
from dpflow.policy.population import PREFIX
from dpflow.rounding import short_up

AT_RUN_TIME = "computed at run time"
NO_END = "no end"


@dataclass(frozen=True, slots=True, kw_only=True)
class GateFit:
    """How many steps one gate admits.

    Attributes:
        whole_budget: From the whole budget: a number, "no end" or "no price".
        now: From what the ledger says is left; None if nobody knows.
    """

    gate: str
    whole_budget: int | str
    now: int | str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDelta:
    """One step in both versions.

    Attributes:
        status: "new", "removed", "changed", "same", or "unguarded" for a function
            that is still there without its guard.
        notes: What a reviewer should know.
    """

    name: str
    status: str
    before: FoundStep | None
    after: FoundStep | None
    fits_before: tuple[GateFit, ...] = ()
    fits_after: tuple[GateFit, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def place(self) -> FoundStep:
        """The step as it is now, or as it was."""
        found = self.after or self.before
        assert found is not None
        return found

    @property
    def shown(self) -> bool:
        """Whether anything about it is to be told."""
        same = self.fits_before == self.fits_after
        return self.status != "same" or bool(self.notes) or not same


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionBudgets:
    """What the steps of one version are measured by.

    Attributes:
        policies: By dataset.
        accounts: The gates of each dataset as the ledger has them, under the version's
            policy; none for datasets where nobody knows.
    """

    policies: Mapping[str, Policy]
    accounts: Mapping[str, Mapping[tuple[str, str], Gate]]


def compare_steps(
    before: Source, after: Source, old: VersionBudgets, new: VersionBudgets
) -> Iterator[StepDelta]:
    """Yield each step that is in either version."""
    for was, is_ in _pairs(before.steps, after.steps):
        fits = _fits(was, old), _fits(is_, new)
        status, notes = _status(was, is_, after)
        if is_ is not None:
            notes += _warnings(is_, new.policies)
        found = is_ or was
        assert found is not None
        yield StepDelta(
            name=found.name,
            status=status,
            before=was,
            after=is_,
            fits_before=fits[0],
            fits_after=fits[1],
            notes=tuple(notes),
        )


def least(fits: tuple[GateFit, ...], *, now: bool = False) -> int | str | None:
    """Return how many steps all gates admit; None if nobody knows."""
    counts = [fit.now if now else fit.whole_budget for fit in fits]
    if not counts or None in counts:
        return None
    words = [each for each in counts if each == "no price"]
    numbers = [each for each in counts if isinstance(each, int)]
    return words[0] if words else min(numbers, default=NO_END)


def _pairs(
    before: list[FoundStep], after: list[FoundStep]
) -> Iterator[tuple[FoundStep | None, FoundStep | None]]:
    """Pair steps of one file and name, then of one name that moved."""
    left, moved = list(before), []
    for step in after:
        same = [b for b in left if (b.file, b.name) == (step.file, step.name)]
        if same:
            left.remove(same[0])
            yield same[0], step
        else:
            moved.append(step)
    for step in moved:
        named = [b for b in left if b.name == step.name]
        if named:
            left.remove(named[0])
        yield (named[0] if named else None), step
    for step in left:
        yield step, None


def _status(
    was: FoundStep | None, is_: FoundStep | None, after: Source
) -> tuple[str, list[str]]:
    if was is None:
        return "new", []
    if is_ is None:
        if was.function and (was.file, was.function) in after.functions:
            note = f"{was.function} is still in {was.file}, without its guard"
            return "unguarded", [note]
        return "removed", []
    notes = list(_changes(was, is_))
    if newly_undrawn(was, is_) or newly_own(was, is_):
        # What that is to a reader, the warnings and the headline say.
        return "changed", notes
    return ("changed" if notes else "same"), notes


def _changes(was: FoundStep, is_: FoundStep) -> Iterator[str]:
    if was.datasets != is_.datasets:
        yield f"dataset {_names(was.datasets)} is now {_names(is_.datasets)}"
    changed = was.text != is_.text
    if changed:
        yield f"cost {was.text or 'none'} is now {is_.text or 'none'}"
        yield from _noise(was.cost, is_.cost)
    if was.release_key != is_.release_key:
        yield (
            f"release key {was.release_key!r} is now {is_.release_key!r}: what was "
            "released is drawn and charged anew"
        )
    elif changed and is_.release_key is not None:
        yield (
            f"another cost under the same release key {is_.release_key!r}: an error at "
            "run wherever a release is kept; give it another key"
        )


def newly_undrawn(was: FoundStep | None, is_: FoundStep | None) -> bool:
    """Say whether a change brings in a body that does not draw its cost's noise."""
    return is_ is not None and is_.undrawn and not (was is not None and was.undrawn)


def newly_own(was: FoundStep | None, is_: FoundStep | None) -> bool:
    """Say whether a change lets a body draw noise that `release` drew until now."""
    return was is not None and is_ is not None and is_.own and not was.own


def _names(datasets: tuple[str, ...]) -> str:
    return ", ".join(datasets) or AT_RUN_TIME


def _noise(was: Cost | None, is_: Cost | None) -> Iterator[str]:
    """Tell by how much noise grew or shrank, where both have it."""
    for name in ("sigma", "scale"):
        old, new = (getattr(cost, name, None) for cost in (was, is_))
        if isinstance(old, Fraction) and isinstance(new, Fraction) and old and new:
            if old != new:
                ratio = short_up(new / old)
                yield f"{name} {short_up(old)} is now {short_up(new)}: {ratio} times"
            return


def _warnings(step: FoundStep, policies: Mapping[str, Policy]) -> list[str]:
    found = [f"its cost cannot be read: {step.problem}"] if step.problem else []
    if not step.problem and step.cost is None:
        found.append(f"its cost is {AT_RUN_TIME}")
    if step.undrawn:
        found.append(
            "no draw is seen in its body: call release(value), or say noise='own' if "
            "the body draws the noise that the cost declares"
        )
    for dataset in step.datasets:
        policy = policies.get(dataset)
        if policy is None:
            found.append(f"no policy governs {dataset}: it would be refused")
            continue
        if policy.other_flows == "refuse":
            found += [
                f"the policy of {dataset} does not let flow {flow} use it: it would be "
                "refused"
                for flow in step.flows
                if flow not in policy.flows
            ]
        if step.cost is not None and policy.relation not in relations_of(step.cost):
            found.append(
                f"its cost does not hold for {policy.relation}, the relation of "
                f"{dataset}: it would be refused"
            )
    return found


def _fits(step: FoundStep | None, budgets: VersionBudgets) -> tuple[GateFit, ...]:
    if step is None or step.cost is None:
        return ()
    return tuple(
        _fit(gate, step.cost, dataset, budgets)
        for dataset in step.datasets
        for gate in _gates(dataset, step.flows, budgets.policies)
    )


def _gates(
    dataset: str, flows: tuple[str, ...], policies: Mapping[str, Policy]
) -> Iterator[Gate]:
    """Yield the gates that a step asks, with empty tallies."""
    policy = policies.get(dataset)
    if policy is None:
        return
    for gate in announced_gates(policy.pinned()):
        halts = gate.kind != "odometer" or gate.halt is not None
        if halts and (gate.kind not in ("flow", "odometer") or gate.name in flows):
            yield gate
    whole = policies.get(f"{PREFIX}{policy.population}")
    if policy.population is not None and whole is not None:
        yield from announced_gates(whole.pinned())


def _fit(gate: Gate, cost: Cost, dataset: str, budgets: VersionBudgets) -> GateFit:
    title = account_title(account_view(gate))
    known = budgets.accounts.get(gate.dataset or dataset)
    now: int | str | None = None
    if known is not None and gate.kind != "partition":
        # One that no step has opened yet has its whole budget.
        now = _count(known.get((gate.kind, gate.name), gate), cost)
    return GateFit(gate=title, whole_budget=_count(gate, cost), now=now)


def _count(gate: Gate, cost: Cost) -> int | str:
    try:
        if not is_priced(gate, cost):
            return "no price"
        steps = steps_that_fit(gate, cost)
    except DpflowError:
        return "no price"
    return NO_END if steps is None else steps
