"""Checking policy files: what they guarantee, what fits, what the ledger says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dpflow.accounting.costs.base import Cost
from dpflow.accounting.costs.noise import Gaussian
from dpflow.accounting.costs.notions import PureDP
from dpflow.accounting.costs.text import cost_from_text, python_form
from dpflow.config import settings, short_path
from dpflow.exceptions import DpflowError, InvalidCost, LedgerMissing, PolicyError
from dpflow.forecast.advice import (
    Advice,
    Suggestion,
    advice,
    suggestion,
    workload_of_sequence,
)
from dpflow.forecast.counting import (
    Pinned,
    Workload,
    WorkloadStep,
    merge,
    steps_that_fit,
    workload_of,
)
from dpflow.forecast.outlook import example_run
from dpflow.guard.inspection import Tell, as_warning, inspect_ledger
from dpflow.ledger import Ledger, TermView, views
from dpflow.ledger.decisions.gates import preview_gates
from dpflow.ledger.views.accounts import AccountView, Standing, account_view, standings
from dpflow.ledger.views.runs import dataset_runs
from dpflow.policy import Policy, PolicySet, load_policies
from dpflow.policy.files import NO_FOLDER_HINT, policy_files, read_policies, unread_text
from dpflow.policy.strict_yaml import policy_error

#: The steps that are counted, with their headings.
STEPS: Mapping[str, Cost] = {
    "Gaussian\nx20": Gaussian(sensitivity=1, noise_multiplier=20),
    "pure\n0.1": PureDP(epsilon="0.1"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GateCheck:
    """A gate of a policy, and how many steps it admits alone.

    Attributes:
        account: It, as an account to which nothing was charged.
        counts: For each of `STEPS` whether it has a price, and how many fit; None if
            there is no end to them, or no price.
    """

    account: AccountView
    counts: Mapping[str, tuple[bool, int | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyCheck:
    """One policy file, how it stands to the ledger, and what is weak about it.

    Attributes:
        policy: None if the file was refused.
        error: Why it was.
        standing: Where its dataset stands; None without a ledger.
        terms: The dataset's terms so far.
        workload: The steps that were taken into account.
        origin: Where they are from, in words.
    """

    path: Path
    policy: Policy | None = None
    error: PolicyError | None = None
    standing: Standing | None = None
    terms: tuple[TermView, ...] = ()
    workload: Workload = ()
    origin: str = ""
    warnings: tuple[Advice, ...] = ()
    suggestion: Suggestion | None = None

    @property
    def differences(self) -> tuple[str, ...]:
        """How the file differs from the ledger's copy."""
        return () if self.standing is None else self.standing.differences

    @property
    def refused(self) -> bool:
        """Whether steps are refused until the edit is undone or applied."""
        standing = self.standing
        return bool(self.differences) and not (standing and standing.replaceable)

    @property
    def same(self) -> bool:
        """Whether the ledger has a copy, and it is the file's."""
        standing = self.standing
        is_open = standing is not None and standing.term is not None
        return is_open and not self.differences

    @property
    def pinned(self) -> Pinned:
        """The numbers that govern: the ledger's, if its copy is the file's."""
        if self.same and self.standing and self.standing.pinned is not None:
            return self.standing.pinned
        return {} if self.policy is None else self.policy.to_pinned()

    @property
    def gates(self) -> list[GateCheck]:
        """The gates of the policy, with what they admit."""
        result = []
        for gate in preview_gates(self.pinned):
            counts = {name: steps_that_fit(gate, cost) for name, cost in STEPS.items()}
            result.append(GateCheck(account=account_view(gate), counts=counts))
        return result

    @property
    def standing_text(self) -> str:
        """How the file stands to the ledger's copy; "" without a ledger."""
        standing = self.standing
        if standing is None or self.policy is None:
            return ""
        if standing.term is None:
            by_step = self.policy.pin == "step"
            pins = "the first step" if by_step else "`dpflow policy apply`"
            return f"not pinned in the ledger yet; {pins} does it"
        if not self.differences:
            return f"same as the ledger's copy (term {standing.term})"
        changes = "; ".join(self.differences)
        if standing.replaceable:
            return (
                f"differs from the ledger: {changes}. Nothing was charged yet, so the "
                "next step applies the file."
            )
        return (
            f"differs from the ledger: {changes}. The ledger's copy governs; steps are "
            "refused until the edit is undone or applied: `dpflow policy diff` says "
            "what applying it would do."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFindings:
    """The findings in policy files.

    Attributes:
        files: One for each file, in the order of their names.
        errors: Why files were refused, and why the ledger could not be read.
        compared: Whether there is a ledger, or an error that says why it is not read.
        weak: Whether the check is strict and anything is weak.
    """

    files: tuple[PolicyCheck, ...]
    errors: tuple[DpflowError, ...]
    compared: bool
    weak: bool

    @property
    def valid(self) -> list[PolicyCheck]:
        """Those that were not refused."""
        return [check for check in self.files if check.policy is not None]

    @property
    def fine(self) -> bool:
        """Whether nothing is wrong, and under a strict check nothing is weak."""
        refused = any(check.refused for check in self.files)
        return not (self.errors or refused or self.weak)


def check_policies(
    path: Path | None = None,
    *,
    costs: Sequence[str] = (),
    people: int | None = None,
    strict: bool = False,
    tell: Tell = as_warning,
) -> PolicyFindings:
    """Check policy files: what they guarantee, how many steps fit, what is weak.

    Every file is checked, however many are bad.

    Args:
        path: A policy file, a folder of them, or the name of a dataset. Default: the
            project's policies.
        costs: Planned steps; else the sequence's, else the journal's.
        people: About how many privacy units there are.
        strict: Whether what is weak fails the check, and so does a missing source.
        tell: Called if the ledger forgot charges, or its witness may be lost with it.

    Raises:
        PolicyError: If the folder cannot be read or has no policy files.
        UnknownDataset: If a name is neither a file nor a dataset.
        ConfigurationError: If the settings cannot be read.
        InvalidCost: If a cost cannot be read.
    """
    setup = settings()
    files = _read(setup.policies if path is None else path, tell)
    errors: list[DpflowError] = [check.error for check in files if check.error]
    compared = True
    try:
        files = _compare(files, tell)
    except LedgerMissing:
        compared = False
    except DpflowError as error:
        errors.append(error)
    warning = setup.witness_warning
    if strict and warning:
        tell(warning)
    judged = [_judge(check, costs, people, strict=strict) for check in files]
    return PolicyFindings(
        files=tuple(judged),
        errors=tuple(errors),
        compared=compared,
        weak=strict
        and bool(warning or any(w.is_weak for check in judged for w in check.warnings)),
    )


# The files


def _read(source: Path, tell: Tell) -> list[PolicyCheck]:
    """Read one policy file, all files of a folder, or the file of a dataset.

    A bad file stops none of the others.
    """
    paths = [source]
    if source.is_dir():
        paths = policy_files(source)
    elif not source.exists() and source.suffix not in (".yaml", ".yml"):
        paths = [load_policies(settings().policies).source(str(source))]
    elif not source.exists():
        message = "there is no such file or folder."
        raise policy_error(short_path(source), None, message, NO_FOLDER_HINT)
    if unread := unread_text(source):
        tell(f"{short_path(source)}: {unread}")
    if not paths:
        message = "there are no policy files here, so nothing was checked."
        hint = "Write one for each dataset; `dpflow status` shows how."
        raise policy_error(short_path(source), None, message, hint)
    result = []
    for path, outcome in read_policies(Path(short_path(path)) for path in paths):
        if isinstance(outcome, PolicyError):
            result.append(PolicyCheck(path=path, error=outcome))
        else:
            result.append(PolicyCheck(path=path, policy=outcome))
    if source.is_dir() and not any(check.error for check in result):
        # What flows will do; it has the last word.
        load_policies(source)
    return result


# The ledger


def _compare(files: list[PolicyCheck], tell: Tell) -> list[PolicyCheck]:
    """Compare files with the ledger's copies."""
    policies = {check.policy.dataset: check.policy for check in files if check.policy}
    with inspect_ledger(settings(), tell=tell) as ledger:
        return [_beside(ledger, PolicySet(policies), check) for check in files]


def _beside(ledger: Ledger, policies: PolicySet, check: PolicyCheck) -> PolicyCheck:
    if check.policy is None:
        return check
    dataset = check.policy.dataset
    standing = standings(ledger, policies, dataset)[0]
    return replace(
        check,
        standing=standing,
        terms=tuple(views.terms(ledger, dataset)),
        workload=_history(ledger, dataset),
    )


def _history(ledger: Ledger, dataset: str) -> Workload:
    """Return one run of each flow, the dearest of its last completed ones."""
    runs = dataset_runs(ledger, dataset)
    if runs is None:
        return ()
    flows = dict.fromkeys(run.flow for run in runs.runs)
    try:
        return workload_of(
            step for flow in flows for step in example_run(ledger, runs, flow).steps
        )
    except InvalidCost:
        # A mechanism of someone's own, which is not imported here.
        return ()


def find_changed_costs(ledger: Ledger, dataset: str) -> list[str]:
    """Return the steps whose last charge has another cost than the one before.

    A cost is declared in code, so that no policy shows its edit. The newest runs of the
    newest term are compared.
    """
    runs = dataset_runs(ledger, dataset)
    costs: dict[tuple[str, str], list[str]] = {}
    for run in () if runs is None else runs.runs:
        for step in run.steps:
            if step.body:
                key = run.flow or "(no flow)", step.body["step"]
                costs.setdefault(key, []).append(python_form(step.body["cost"]))
    lines = []
    for (flow, name), own in sorted(costs.items()):
        before, last = own[-2:] if len(own) > 1 else own * 2
        if last != before:
            lines.append(
                f"Step {name!r} of flow {flow!r}: its last charge is {last}, and the "
                f"one before was {before}."
            )
    return lines


# What is weak


def _judge(
    check: PolicyCheck, costs: Sequence[str], people: int | None, *, strict: bool
) -> PolicyCheck:
    """Judge a policy, with its workload, where there is one."""
    policy = check.policy
    if policy is None:
        return check
    workload, origin = workload_of_sequence(policy), "its sequence"
    if costs:
        workload = merge(WorkloadStep(cost_from_text(text)) for text in costs)
        origin = "--cost"
    elif not workload and check.workload:
        workload, origin = check.workload, "the journal: one run of each flow"
    result = advice(
        policy, people=people, workload=workload, terms=check.terms, strict=strict
    )
    return replace(
        check,
        workload=workload,
        origin=origin if workload else "",
        warnings=tuple(result),
        suggestion=suggestion(policy, workload),
    )
