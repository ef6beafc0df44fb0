"""Checking policy files: what they guarantee, what fits, what the ledger says."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpflow.accounting.costs.base import Cost
from dpflow.accounting.costs.noise import Gaussian
from dpflow.accounting.costs.notions import PureDP
from dpflow.cli.capacity import FlowGates, flow_gates, is_priced, steps_that_fit
from dpflow.cli.output import finite, short_path
from dpflow.cli.source import Standing, gates, project_ledger, standings, view_of
from dpflow.cli.tables import GateRow, threshold_text
from dpflow.exceptions import InvalidCost, LedgerMissing, PolicyError
from dpflow.forecast.advice import (
    Advice,
    Suggestion,
    advice,
    declared_workload,
    suggestion,
)
from dpflow.forecast.counts import Workload
from dpflow.forecast.outlook import example_run
from dpflow.forecast.workload import merged
from dpflow.forecast.workload_file import step_from_text, workload_of_runs
from dpflow.ledger import Ledger
from dpflow.ledger import views as ledger_views
from dpflow.ledger.decision.gates import Gate
from dpflow.ledger.records import TermView, UnusualSteps
from dpflow.ledger.views.runs import dataset_runs
from dpflow.ledger.views.words import account_title
from dpflow.policy import Policy, PolicySet, load_policies, load_policy
from dpflow.policy.files import NO_FOLDER_HINT
from dpflow.policy.population import PREFIX
from dpflow.policy.strict_yaml import policy_error
from dpflow.show.guarantees import term_guarantee

#: The steps that are counted, with their headings.
_STEPS: Sequence[tuple[str, Cost]] = (
    ("Gaussian\nx20", Gaussian(sensitivity=1, noise_multiplier=20)),
    ("pure\n0.1", PureDP(epsilon="0.1")),
)
STEPS_LEGEND = (
    "The last columns say how many steps fit each gate alone: Gaussian steps with "
    "noise multiplier 20, and steps that are 0.1-DP. An odometer admits up to its "
    "halt; idle is what it reads before any step."
)
_SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """One policy file and what was found in it.

    Attributes:
        policy: None if the file was refused.
        error: Why it was.
    """

    path: Path
    policy: Policy | None = None
    error: PolicyError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How a policy stands to the ledger's copy.

    Attributes:
        term: The copy's term; None if the ledger has none.
        differences: Readable lines; empty if it is the same.
        replaceable: The next step applies the file, whatever the copy says.
        officers: Who has to apply the file if there is no copy.
        terms: The dataset's terms so far.
        pinned: The copy, with the numbers that govern.
        workload: One run of each flow that has charged something.
        unusual: How many steps drew their own noise, failed or were forfeited.
    """

    term: int | None
    pinned: Mapping[str, Any] | None = None
    differences: tuple[str, ...] = ()
    replaceable: bool = True
    officers: tuple[str, ...] = ()
    terms: tuple[TermView, ...] = ()
    workload: Workload = ()
    unusual: UnusualSteps = field(default_factory=UnusualSteps)

    @property
    def refused(self) -> bool:
        """Whether steps are refused until the edit is undone or applied."""
        return bool(self.differences) and not self.replaceable

    @property
    def same(self) -> bool:
        """Whether the copy is the file's."""
        return self.term is not None and not self.differences

    @property
    def text(self) -> str:
        """What to tell people."""
        if self.term is None and self.officers:
            named = ", ".join(self.officers)
            return (
                f"not applied in the ledger yet; an officer ({named}) has to run "
                "`dpflow policy apply`"
            )
        if self.term is None:
            return "not pinned in the ledger yet; the first step does it"
        if not self.differences:
            return f"same as the ledger's copy (term {self.term})"
        told = "; ".join(self.differences)
        if self.replaceable:
            return (
                f"differs from the ledger: {told}. Nothing was charged yet, so the "
                "next step applies the file."
            )
        return (
            f"differs from the ledger: {told}. The ledger's copy governs; steps are "
            "refused until the edit is undone or applied: `dpflow policy diff` says "
            "what applying it would do."
        )


def check_files(place: Path) -> list[Checked]:
    """Read one policy file, or all files of a folder; a bad one stops none.

    Raises:
        PolicyError: If the folder cannot be read or has no policy files.
    """
    if not place.is_dir():
        if place.exists():
            return [_check_file(place)]
        message = "there is no such file or folder."
        raise policy_error(short_path(place), None, message, NO_FOLDER_HINT)
    paths = [
        path
        for path in sorted(place.iterdir())
        if path.suffix in _SUFFIXES and not path.name.startswith(".")
    ]
    if not paths:
        message = "there are no policy files here, so nothing was checked."
        hint = "Write one for each dataset; `dpflow status` shows how."
        raise policy_error(short_path(place), None, message, hint)
    found = list(_without_repetitions(_check_file(path) for path in paths))
    if not any(each.error for each in found):
        # What flows will do; it has the last word.
        load_policies(place)
    return found


def _check_file(path: Path) -> Checked:
    try:
        return Checked(path=path, policy=load_policy(short_path(path)))
    except PolicyError as error:
        return Checked(path=path, error=error)


def _without_repetitions(found: Iterator[Checked]) -> Iterator[Checked]:
    """Refuse a file that governs a dataset which an earlier one governs."""
    first: dict[str, Path] = {}
    for each in found:
        policy = each.policy
        if policy is None or policy.dataset not in first:
            if policy is not None:
                first[policy.dataset] = each.path
            yield each
            continue
        message = (
            f"{short_path(first[policy.dataset])} already governs the dataset "
            f"{policy.dataset!r}."
        )
        hint = "Keep one file for each dataset."
        error = policy_error(short_path(each.path), None, message, hint)
        yield Checked(path=each.path, error=error)


def compare(policies: Mapping[str, Policy]) -> dict[str, Comparison] | None:
    """Compare policies with the ledger's copies; None if there is no ledger yet.

    Raises:
        LedgerError: If there is one and it cannot be used.
        ConfigurationError: If the settings or the pin cannot be read.
    """
    try:
        with project_ledger() as (_, ledger):
            known = PolicySet(policies)
            return {
                name: _comparison(
                    policy,
                    standings(ledger, known, name)[-1],
                    ledger_views.terms(ledger, name),
                    _history(ledger, name),
                    ledger_views.unusual_steps(ledger, name),
                )
                for name, policy in policies.items()
            }
    except LedgerMissing:
        return None


def _history(ledger: Ledger, dataset: str) -> Workload:
    """Return one run of each flow, the dearest of its last completed ones."""
    runs = dataset_runs(ledger, dataset)
    if runs is None:
        return ()
    flows = dict.fromkeys(run.flow for run in runs.runs)
    try:
        return workload_of_runs([example_run(ledger, runs, flow) for flow in flows])
    except InvalidCost:
        # A mechanism of someone's own, which is not imported here.
        return ()


def _comparison(
    policy: Policy,
    standing: Standing,
    terms: list[TermView],
    workload: Workload,
    unusual: UnusualSteps,
) -> Comparison:
    return Comparison(
        term=standing.term,
        pinned=standing.pinned,
        differences=standing.differences,
        replaceable=standing.replaceable,
        officers=policy.officers,
        terms=tuple(terms),
        workload=workload,
        unusual=unusual,
    )


def guarantee(policy: Policy, comparison: Comparison | None) -> str:
    """Say what a policy guarantees, with the term's budget where it governs."""
    same = comparison is not None and comparison.same
    terms = comparison.terms if comparison is not None and same else ()
    return term_guarantee(policy.declared(), terms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What is weak about a policy, and what would be better.

    Attributes:
        workload: The steps that were taken into account.
        origin: Where they are from, in words.
        flows: Which gate ends each flow that has two of its own.
    """

    warnings: tuple[Advice, ...]
    workload: Workload
    origin: str
    suggestion: Suggestion | None
    flows: tuple[FlowGates, ...] = ()


def judgement(
    policy: Policy,
    comparison: Comparison | None,
    *,
    costs: Sequence[str] = (),
    people: int | None = None,
) -> Judgement:
    """Judge a policy, with the workload that is known of it.

    Args:
        policy: The policy.
        comparison: How it stands to the ledger, if there is one.
        costs: Steps that are meant to run; else the plan's, else the journal's.
        people: About how many privacy units there are.

    Raises:
        InvalidCost: If a cost is none.
    """
    terms = () if comparison is None else comparison.terms
    workload, origin = declared_workload(policy), "its plan"
    if costs:
        workload, origin = merged(step_from_text(text) for text in costs), "--cost"
    elif not workload and comparison is not None:
        workload, origin = comparison.workload, "the journal: one run of each flow"
    steps = dict.fromkeys(step.cost for step in workload)
    kinds = tuple(steps) or tuple(cost for _, cost in _STEPS)
    return Judgement(
        flows=tuple(flow_gates(gates(governing(policy, comparison)), kinds)),
        warnings=tuple(advice(policy, people=people, workload=workload, terms=terms)),
        workload=workload,
        origin=origin if workload else "",
        suggestion=suggestion(policy, workload),
    )


def strictly(policy: Policy, judged: Judgement) -> Judgement:
    """Add what only a strict check calls weak: a policy that names no source."""
    if policy.source is not None or policy.dataset.startswith(PREFIX):
        return judged
    unsourced = Advice(
        "no-source",
        "It names no `source`: a ledger that is made anew forgets what was spent, and "
        "nothing notices.",
        "Name the data behind it, such as `source: warehouse.sales`: the first "
        "ledger that charges it governs it.",
    )
    return dataclasses.replace(judged, warnings=(*judged.warnings, unsourced))


def governing(policy: Policy, comparison: Comparison | None) -> Mapping[str, Any]:
    """Return the numbers that govern: the ledger's, if its copy is the file's."""
    if comparison is not None and comparison.same and comparison.pinned is not None:
        return comparison.pinned
    return policy.pinned()


def gate_rows(pinned: Mapping[str, Any]) -> list[GateRow]:
    """Return the gates of a policy with what they admit, for people."""
    return [
        GateRow(
            title=_title(gate),
            theorem=gate.rule.theorem,
            constants=_constants(gate),
            threshold=threshold_text(view_of(gate, state="open")),
            steps={name: _count_text(gate, cost) for name, cost in _STEPS},
        )
        for gate in gates(pinned)
    ]


def gates_json(pinned: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the gates of a policy with what they admit, for programs.

    A count is null where there is no end to the steps, or no price for them; then
    `priced` says so.
    """
    found = []
    for gate in gates(pinned):
        view = view_of(gate, state="open")
        counts = [
            {
                "cost": cost.describe(),
                "priced": is_priced(gate, cost),
                "steps": _count(gate, cost),
            }
            for _, cost in _STEPS
        ]
        found.append(
            {
                "kind": gate.kind,
                "name": gate.name,
                "theorem": gate.rule.theorem,
                "parameters": gate.rule.parameters(),
                "budget": view.budget,
                "idle_reading": finite(view.reading),
                "halt_at_epsilon": view.halt_at,
                "fits": counts,
            }
        )
    return found


def _title(gate: Gate) -> str:
    return account_title(view_of(gate, state="open"))


def _constants(gate: Gate) -> dict[str, object]:
    parameters = gate.rule.parameters()
    return {name: text for name, text in parameters.items() if name != "theorem"}


def _count(gate: Gate, cost: Cost) -> int | None:
    return steps_that_fit(gate, cost) if is_priced(gate, cost) else None


def _count_text(gate: Gate, cost: Cost) -> str:
    if not is_priced(gate, cost):
        return "no price"
    steps = steps_that_fit(gate, cost)
    return "no end" if steps is None else f"{steps}"
