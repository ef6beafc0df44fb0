"""Making a project: a policy, a flow, a ledger; and nothing over anything."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from dpflow.accounting.costs.text import cost_from_text
from dpflow.config import Settings, settings, short_path
from dpflow.exceptions import (
    ConfigurationError,
    LedgerMissing,
    UnsupportedCost,
    how_to_install,
    require,
)
from dpflow.forecast.counting import WorkloadStep, loads_of, runs_left
from dpflow.guard.project import make_project_ledger, project_ledger
from dpflow.ledger import LOCK_NAME, Ledger, is_postgres
from dpflow.policy import Policy, PolicySet, load_policies, parse_policy
from dpflow.policy.files import policies_in
from dpflow.policy.strict_yaml import exact_decimal
from dpflow.starter.texts import (
    IGNORED,
    ROOT,
    Wishes,
    flow_text,
    identifier,
    policy_text,
    schema_text,
)

#: The theorems that a first flow can use, the default first.
FILTERS = ("gdp", "auto", "zcdp", "rdp", "whitehouse", "basic")
_DELTAS = {"basic": "0"}
_DEFAULT_DELTA = "1e-6"
#: Costs of the first step, the least noise first.
_GAUSSIAN_COSTS = tuple(
    f"Gaussian(sensitivity=1, noise_multiplier={multiplier})"
    for multiplier in (20, 50, 100, 200, 500, 1000, 10_000, 100_000)
)
_PURE_COSTS = tuple(
    f'Laplace(sensitivity=1, epsilon="{epsilon}")'
    for epsilon in ("0.1", "0.01", "0.001", "0.0001", "0.00001")
)
_FORBIDDEN = re.compile(r"[^A-Za-z0-9_.-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What was made, and what to do next.

    Attributes:
        made: Files that were written.
        kept: Files that were there, and stay as they were.
        ledger: Its id.
        runs: How many runs of the flow fit; None if the flow was there before.
    """

    root: Path
    made: tuple[Path, ...]
    kept: tuple[Path, ...]
    ledger: str
    guarantee: str
    runs: int | None
    commands: tuple[str, ...]
    warnings: tuple[str, ...]


def filter_for(*, noise: str, use: str, of: str, delta: str) -> tuple[str, str]:
    """Return the filter of a first policy, and the reason.

    Args:
        noise: "gaussian", "laplace" or "mixed".
        use: "reports" or "training".
        of: "rows" or "people".
        delta: Delta of the budget, as text.
    """
    if exact_decimal(delta) == 0:
        return "basic", "without a delta, only pure steps fit."
    if use == "training":
        return "rdp", (
            "it prices the sampled Gaussian steps of DP-SGD. Fix its order before the "
            "first charge: `dpflow forecast --theorems --cost ...` names the best one."
        )
    if noise == "mixed":
        return "auto", "it admits any mixture of steps."
    why = "it loses nothing on Gaussian noise and takes Laplace and pure steps."
    if of == "people":
        why += " Recurring reports about people can use `individual` instead."
    return "gdp", why


def default_delta(people: int | None) -> str:
    """Return a power of ten that is at most a tenth of one in so many people."""
    if people is None:
        return _DEFAULT_DELTA
    return f"1e-{max(len(str(people)) + 1, 6)}"


def make_project(wishes: Wishes) -> Made:
    """Make what is missing of a project.

    Raises:
        PolicyError: If the policy would be refused, or one that is there is.
        LedgerError: If a ledger is pinned and not there, or there and not pinned.
        ConfigurationError: If the flow has no usable name. Then nothing was made.
    """
    found = settings()
    policies = policies_in(found.policies)
    wishes = _with_defaults(wishes, policies)
    allowed, got = ", ".join(FILTERS), repr(wishes.theorem)[:60]
    message = f"a first flow can use the filters {allowed}; got {got}"
    require(wishes.theorem in FILTERS, message)
    ledger = ledger_there(found)
    place = found.policies / f"{_file_name(wishes.dataset or '')}.yaml"
    text = policy_text(wishes)
    policy = parse_policy(text, file=f"nothing was made: {short_path(place)}")
    there = policies.sources.get(policy.dataset)
    cost = _first_cost(policy, wishes.flow)
    flow_file = found.root / "flows" / f"{identifier(wishes.flow or '')}.py"
    files = {
        there or place: text,
        found.policies / "policy.schema.json": schema_text(),
        flow_file: flow_text(wishes, cost, short_path(place)),
        found.root / ".gitignore": IGNORED,
        found.root / "pyproject.toml": ROOT,
    }
    kept = [path for path in files if path.exists()]
    made = [path for path in files if path not in kept]
    for path in made:
        _write(path, files[path])
    if ledger is None:
        ledger = make_project_ledger(found)
        made += [] if is_postgres(found.ledger_url) else [Path(ledger.place)]
        made.append(found.policies / LOCK_NAME)
    else:
        kept.append(found.policies / LOCK_NAME)
    governs = load_policies(found.policies).policy_for(policy.dataset)
    return Made(
        root=found.root,
        made=tuple(made),
        kept=tuple(path for path in kept if path.name != "pyproject.toml"),
        ledger=ledger.id,
        guarantee=governs.guarantee_sentence(),
        runs=None if flow_file in kept else _runs(governs, wishes.flow, cost),
        commands=(
            "dpflow policy check",
            f"python {short_path(flow_file)}",
            "dpflow status",
            f"Commit {short_path(found.policies)}/ with its {LOCK_NAME}, and flows/.",
        ),
        warnings=tuple(_warnings(found, kept, flow_file if there is None else None)),
    )


def _with_defaults(wishes: Wishes, policies: PolicySet) -> Wishes:
    """Return wishes without gaps: the project's dataset and flow, else usual values.

    Raises:
        ConfigurationError: If none was named and the project has several datasets.
    """
    require(
        wishes.dataset is not None or len(policies) <= 1,
        f"this project has policies for {', '.join(sorted(policies))}: say with "
        "--dataset which one a flow is made for, or name a new one. `dpflow ledger "
        "init` makes a ledger and nothing else.",
    )
    dataset = wishes.dataset or next(iter(policies), "visits")
    flows = policies[dataset].flows if dataset in policies else {}
    theorem = wishes.theorem or FILTERS[0]
    usual = _DELTAS.get(theorem) or default_delta(wishes.people)
    return replace(
        wishes,
        dataset=dataset,
        unit=wishes.unit or "visitor",
        epsilon=wishes.epsilon or "1",
        delta=wishes.delta or usual,
        theorem=theorem,
        flow=wishes.flow or next(iter(flows), "daily-report"),
    )


def _file_name(name: str) -> str:
    return _FORBIDDEN.sub("-", name).strip(".-") or "policy"


def ledger_there(found: Settings) -> Ledger | None:
    """Return the project's ledger, closed; None if one is to be made."""
    try:
        ledger = project_ledger(found)
    except LedgerMissing:
        if (found.policies / LOCK_NAME).exists():
            raise
        return None
    ledger.close()
    return ledger


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        msg = (
            f"cannot write {short_path(path)}: {error.strerror}. Run it in a folder "
            "that you may write to; what is there already is kept."
        )
        raise ConfigurationError(msg) from error


def place_note() -> str | None:
    """Say where the project is made, if that is not the working directory."""
    root = settings().root
    if root == Path.cwd():
        return None
    return (
        f"this folder belongs to the project {root}, for its pyproject.toml: "
        "everything is made there. For a project of its own, run `touch "
        "pyproject.toml` here first."
    )


def _warnings(
    found: Settings, kept: list[Path], flow_file: Path | None
) -> Iterator[str]:
    if flow_file in kept:
        yield (
            f"{short_path(flow_file)} was there before this policy, so it may well use "
            "another dataset; a flow of its own is made with --flow NAME"
        )
    ignored = found.root / ".gitignore"
    if ignored in kept and ".dpflow" not in ignored.read_text("utf-8", "replace"):
        yield f"add the line .dpflow/ to {short_path(ignored)}: a ledger is no source"
    if importlib.util.find_spec("opendp") is None:
        yield f"the flow draws its noise with OpenDP; {how_to_install('opendp')}"


def _first_cost(policy: Policy, flow: str | None) -> str:
    """Return the cost of the first step: the least noise with which many runs fit."""
    costs, enough = _GAUSSIAN_COSTS, 20
    try:
        policy.dataset_filter().price(cost_from_text(costs[0]))
    except UnsupportedCost:
        costs, enough = _PURE_COSTS, 10
    counts = ((cost, _runs(policy, flow, cost)) for cost in costs)
    fit = (cost for cost, runs in counts if runs is None or runs >= enough)
    return next(fit, costs[-1])


def _runs(policy: Policy, flow: str | None, cost: str) -> int | None:
    step = WorkloadStep(cost_from_text(cost))
    return runs_left(loads_of(policy.pinned(), flow, (step,)))[0]
