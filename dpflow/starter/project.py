"""Creation of a project: a policy, a flow and a ledger; no file is overwritten."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from contextlib import closing
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
from dpflow.ledger import LOCK_NAME, Ledger, is_postgres, view_policy
from dpflow.policy import Policy, PolicySet, load_policies, parse_policy
from dpflow.policy.files import policies_in
from dpflow.policy.lifetime import total_of
from dpflow.policy.strict_yaml import exact_decimal
from dpflow.starter.texts import (
    ProjectOptions,
    fill,
    flow_text,
    identifier,
    policy_text,
    schema_text,
)

_DELTAS = {"basic": "0"}
#: Costs of the first step, the least noise first, and a sufficient number of runs.
_GAUSSIAN_NOISES = "20 50 100 200 500 1000 10000 100000"
_GAUSSIAN = "Gaussian(sensitivity=1, noise_multiplier={})", _GAUSSIAN_NOISES, 20
_LAPLACE_NOISES = "0.1 0.01 0.001 0.0001 0.00001"
_LAPLACE = 'Laplace(sensitivity=1, epsilon="{}")', _LAPLACE_NOISES, 10


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedProject:
    """Files and ledger of a project, and the next commands.

    Attributes:
        made: Files that were written.
        kept: Existing files, unchanged.
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
    more = " Recurring reports about people can use `individual` instead."
    why = "it loses nothing on Gaussian noise and takes Laplace and pure steps."
    return "gdp", why + (more if of == "people" else "")


def default_delta(people: int | None) -> str:
    """Return a power of ten of at most 1e-6 and 1 / (10 * people)."""
    return f"1e-{max(len(str(people or 0)) + 1, 6)}"


def make_project(options: ProjectOptions) -> CreatedProject:
    """Make the missing files and the missing ledger of a project.

    Raises:
        PolicyError: If the new policy or one of the project's is refused.
        LedgerError: If the pinned ledger is missing, or a ledger is not pinned.
        ConfigurationError: If the flow has no usable name. Then nothing was written.
    """
    setup = settings()
    policies = policies_in(setup.policies)
    options = _with_defaults(options, policies)
    ledger = existing_ledger(setup)
    file_name = re.sub(r"[^A-Za-z0-9_.-]+", "-", options.dataset).strip(".-")
    policy_file = setup.policies / f"{file_name or 'policy'}.yaml"
    text, file = policy_text(options), f"nothing was made: {short_path(policy_file)}"
    policy = parse_policy(text, file=file)
    if options.terms:
        text = policy_text(
            options, total_of([view_policy(policy).counted] * options.terms)
        )
        policy = parse_policy(text, file=file)
    there = policies.sources.get(policy.dataset)
    cost = _first_cost(policy, options.flow)
    flow_file = setup.root / "flows" / f"{identifier(options.flow)}.py"
    lock = setup.policies / LOCK_NAME
    files = {
        there or policy_file: text,
        setup.policies / "policy.schema.json": schema_text(),
        flow_file: flow_text(options, cost, short_path(policy_file)),
        setup.root / ".gitignore": fill("gitignore"),
        setup.root / "pyproject.toml": fill("pyproject.toml"),
    }
    present = [path for path in files if path.exists()]
    missing = [path for path in files if path not in present]
    for path in missing:
        _write(path, files[path])
    if ledger is None:
        ledger = make_project_ledger(setup)
        missing += [] if is_postgres(setup.ledger_url) else [Path(ledger.address)]
        missing.append(lock)
    else:
        present.append(lock)
    governing = load_policies(setup.policies).policy_for(policy.dataset)
    return CreatedProject(
        root=setup.root,
        made=tuple(missing),
        kept=tuple(path for path in present if path.name != "pyproject.toml"),
        ledger=ledger.id,
        guarantee=governing.guarantee_sentence(),
        runs=None if flow_file in present else _runs(governing, options.flow, cost),
        commands=(
            "dpflow policy check",
            f"python {short_path(flow_file)}",
            "dpflow status",
            f"Commit {short_path(setup.policies)}/ with its {LOCK_NAME}, and flows/.",
        ),
        warnings=tuple(_warnings(setup, present, flow_file if there is None else None)),
    )


def _with_defaults(options: ProjectOptions, policies: PolicySet) -> ProjectOptions:
    """Return options without gaps: the project's dataset and flow, else defaults.

    Raises:
        ConfigurationError: If no dataset was named and the project has several.
    """
    require(
        options.dataset or len(policies) <= 1,
        f"this project has policies for {', '.join(sorted(policies))}. Name one with "
        "--dataset, or a new one. `dpflow ledger init` makes only a ledger.",
    )
    dataset = options.dataset or next(iter(policies), "visits")
    flows = policies[dataset].flows if dataset in policies else {}
    theorem = options.theorem or "gdp"
    return replace(
        options,
        dataset=dataset,
        unit=options.unit or "visitor",
        epsilon=options.epsilon or "1",
        delta=options.delta or _DELTAS.get(theorem) or default_delta(options.people),
        theorem=theorem,
        flow=options.flow or next(iter(flows), "daily-report"),
    )


def existing_ledger(setup: Settings) -> Ledger | None:
    """Return the project's ledger, closed; None if the project has none yet."""
    try:
        with closing(project_ledger(setup)) as ledger:
            return ledger
    except LedgerMissing:
        if (setup.policies / LOCK_NAME).exists():
            raise
    return None


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        msg = (
            f"cannot write {short_path(path)}: {error.strerror}. Run it in a folder "
            "that you may write to; existing files stay."
        )
        raise ConfigurationError(msg) from error


def _warnings(
    setup: Settings, present: list[Path], flow_file: Path | None
) -> Iterator[str]:
    root = setup.root
    if setup.witness_warning:
        yield setup.witness_warning
    if root != Path.cwd():
        yield (
            f"this folder belongs to the project {root}, for its pyproject.toml: "
            "everything is written there. For a project of its own, run `touch "
            "pyproject.toml` here first."
        )
    if flow_file in present:
        yield (
            f"{short_path(flow_file)} was there before this policy, so it may use "
            "another dataset; --flow NAME makes a flow of its own"
        )
    ignored = root / ".gitignore"
    if ignored in present and ".dpflow" not in ignored.read_text("utf-8", "replace"):
        yield f"add the line .dpflow/ to {short_path(ignored)}: a ledger is no source"
    if importlib.util.find_spec("opendp") is None:
        yield f"the flow draws its noise with OpenDP; {how_to_install('opendp')}"


def _first_cost(policy: Policy, flow: str) -> str:
    """Return the first cost of the list of which enough runs fit, else the last."""
    form, noises, enough = _GAUSSIAN
    try:
        policy.dataset_filter().price(cost_from_text(form.format(20)))
    except UnsupportedCost:
        form, noises, enough = _LAPLACE
    costs = [form.format(noise) for noise in noises.split()]
    for cost in costs:
        runs = _runs(policy, flow, cost)
        if runs is None or runs >= enough:
            return cost
    return costs[-1]


def _runs(policy: Policy, flow: str | None, cost: str) -> int | None:
    step = WorkloadStep(cost_from_text(cost))
    return runs_left(loads_of(policy.to_pinned(), flow, (step,)))[0]
