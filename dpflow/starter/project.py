"""Making a project: a policy, a flow, a ledger; and nothing over anything."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from dpflow.accounting.costs.text import cost_from_text
from dpflow.config import Settings, settings, short_path
from dpflow.exceptions import ConfigurationError, LedgerMissing, how_to_install
from dpflow.forecast.counting import WorkloadStep, loads_of, runs_left
from dpflow.guard.project import (
    make_project_ledger,
    pinned_elsewhere,
    project_ledger,
)
from dpflow.ledger import (
    LOCK_NAME,
    is_postgres,
    open_ledger,
    storage_at,
)
from dpflow.policy import Policy, PolicySet, load_policies, parse_policy
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
_PURE = ("basic",)
_DEFAULT_DELTA = "1e-6"
#: Noise of the first step, the least with which enough runs fit.
_MULTIPLIERS, _ENOUGH = (20, 50, 100, 200, 500, 1000, 10_000, 100_000), 20
_EPSILONS = ("0.1", "0.01", "0.001", "0.0001", "0.00001")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """A file to be made."""

    path: Path
    text: str


def filter_for(*, noise: str, use: str, of: str, delta: str) -> tuple[str, str]:
    """Return the filter of a first policy, and the reason.

    Args:
        noise: "gaussian", "laplace" or "mixed".
        use: "reports" or "training".
        of: "rows" or "people".
        delta: Delta of the budget, as text.
    """
    if exact_decimal(delta) == 0:
        return (
            "basic",
            "without a delta, only pure steps fit.",
        )
    if use == "training":
        return "rdp", (
            "it prices the sampled Gaussian steps of DP-SGD. Fix its order before the "
            "first charge: `dpflow forecast --theorems --cost ...` names the best one."
        )
    if noise == "mixed":
        return "auto", "it admits any mixture of steps."
    people = " Recurring reports about people can use `individual` instead."
    return "gdp", (
        "it loses nothing on Gaussian noise and takes Laplace and pure steps."
        f"{people if of == 'people' else ''}"
    )


def default_delta(people: int | None) -> str:
    """Return a power of ten that is at most a tenth of one in so many people."""
    if people is None:
        return _DEFAULT_DELTA
    return f"1e-{max(len(str(people)) + 1, 6)}"


def make_project(wishes: Wishes) -> Made:
    """Make what is missing of a project.

    Raises:
        PolicyError: If the policy would be refused, or one that is there is.
        ConfigurationError: If a ledger is pinned and not there, or there and not
            pinned, or the flow has no usable name. Then nothing was made.
    """
    found = settings()
    wishes = _with_defaults(_of_project(found, wishes))
    if wishes.theorem not in FILTERS:
        msg = f"a first flow can use the filters {', '.join(FILTERS)}; got "
        raise ConfigurationError(msg + repr(wishes.theorem)[:60])
    missing = _ledger_missing(found)
    place = found.policies / f"{_file_name(wishes.dataset or '')}.yaml"
    text = policy_text(wishes)
    policy = parse_policy(text, file=f"nothing was made: {short_path(place)}")
    there = _policy_there(found, policy.dataset)
    cost = _first_cost(policy, wishes.flow)
    flow_file = found.root / "flows" / f"{identifier(wishes.flow or '')}.py"
    files = [
        _File(path=there or place, text=text),
        _File(path=found.policies / "policy.schema.json", text=schema_text()),
        _File(path=flow_file, text=flow_text(wishes, cost, short_path(place))),
        _File(path=found.root / ".gitignore", text=IGNORED),
        *_root_file(found.root),
    ]
    new = [file for file in files if not file.path.exists()]
    for file in new:
        _write(file)
    ledger, made = _ledger(found, missing=missing)
    kept = [file.path for file in files if file not in new]
    governs = load_policies(found.policies).policy_for(policy.dataset)
    return Made(
        root=found.root,
        made=(*(file.path for file in new), *made),
        kept=(*kept, *(() if missing else (found.policies / LOCK_NAME,))),
        ledger=ledger,
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


def _of_project(found: Settings, wishes: Wishes) -> Wishes:
    """Take the dataset and the flow that the project has, where none was named.

    Raises:
        ConfigurationError: If it has several datasets.
    """
    known = _policies(found)
    if wishes.dataset is None and len(known) > 1:
        msg = (
            f"this project has policies for {', '.join(sorted(known))}: say with "
            "--dataset which one a flow is made for, or name a new one. `dpflow ledger "
            "init` makes a ledger and nothing else."
        )
        raise ConfigurationError(msg)
    dataset = wishes.dataset or next(iter(known), None)
    if dataset is None or dataset not in known:
        return wishes
    flow = wishes.flow or next(iter(known[dataset].flows), None)
    return replace(wishes, dataset=dataset, flow=flow)


def _policies(found: Settings) -> PolicySet:
    if not found.policies.is_dir():
        return PolicySet({}, {}, found.policies)
    return load_policies(found.policies)


def _with_defaults(wishes: Wishes) -> Wishes:
    theorem = wishes.theorem or FILTERS[0]
    usual = "0" if theorem in _PURE else default_delta(wishes.people)
    return replace(
        wishes,
        dataset=wishes.dataset or "visits",
        unit=wishes.unit or "visitor",
        epsilon=wishes.epsilon or "1",
        delta=wishes.delta or usual,
        theorem=theorem,
        flow=wishes.flow or "daily-report",
    )


def _file_name(name: str) -> str:
    return _FORBIDDEN.sub("-", name).strip(".-") or "policy"


# What is there


def _ledger_missing(found: Settings) -> bool:
    """Say whether a ledger is to be made; refuse where that could forget charges."""
    lock = found.policies / LOCK_NAME
    place = storage_at(found.ledger_url).place
    try:
        ledger = open_ledger(
            found.ledger_url, environment=found.environment, witness=found.witness
        )
    except LedgerMissing:
        if lock.exists():
            raise ConfigurationError(pinned_elsewhere(found, place)) from None
        return True
    ledger.close()
    if not lock.exists():
        msg = (
            f"there is a ledger at {place}, but {short_path(lock)} is missing. Restore "
            "it from version control; if this is certainly the project's ledger, "
            f"write its id {ledger.id} there."
        )
        raise ConfigurationError(msg)
    project_ledger(found).close()
    return False


def _policy_there(found: Settings, dataset: str) -> Path | None:
    """Return the file that governs the dataset already, if one does."""
    known = _policies(found)
    return known.source(dataset) if dataset in known else None


def _write(file: _File) -> None:
    try:
        file.path.parent.mkdir(parents=True, exist_ok=True)
        with file.path.open("x", encoding="utf-8") as stream:
            stream.write(file.text)
    except OSError as error:
        msg = (
            f"cannot write {short_path(file.path)}: {error.strerror}. Run it in a "
            "folder that you may write to; what is there already is kept."
        )
        raise ConfigurationError(msg) from error


def _root_file(root: Path) -> Iterator[_File]:
    if not (root / "pyproject.toml").exists():
        yield _File(path=root / "pyproject.toml", text=ROOT)


def _ledger(found: Settings, *, missing: bool) -> tuple[str, tuple[Path, ...]]:
    """Make and pin the ledger, or say which one is there."""
    if not missing:
        ledger = project_ledger(found)
        ledger.close()
        return ledger.id, ()
    ledger = make_project_ledger(found)
    place = () if is_postgres(found.ledger_url) else (Path(ledger.place),)
    return ledger.id, (*place, found.policies / LOCK_NAME)


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
    pure = policy.filter.theorem in _PURE
    costs = (
        [f'Laplace(sensitivity=1, epsilon="{number}")' for number in _EPSILONS]
        if pure
        else [f"Gaussian(sensitivity=1, noise_multiplier={n})" for n in _MULTIPLIERS]
    )
    enough = _ENOUGH // 2 if pure else _ENOUGH
    for cost in costs:
        runs = _runs(policy, flow, cost)
        if runs is None or runs >= enough:
            return cost
    return costs[-1]


def _runs(policy: Policy, flow: str | None, cost: str) -> int | None:
    step = WorkloadStep(cost_from_text(cost))
    return runs_left(loads_of(policy.pinned(), flow, (step,)))[0]
