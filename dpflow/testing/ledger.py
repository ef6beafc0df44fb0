"""The ledger of a test: its policies, its noise, its refusals and what was charged."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from unittest import mock

from dpflow.accounting.costs.base import Cost, cost_from_description
from dpflow.config import (
    ENVIRONMENT_VARIABLE,
    KEY_VARIABLE,
    LEDGER_VARIABLE,
    NO_WITNESS,
    POLICIES_VARIABLE,
    WITNESS_VARIABLE,
    settings,
)
from dpflow.exceptions import require
from dpflow.guard.project import current_project, forget_projects
from dpflow.ledger import Ledger, create_ledger, pin_ledger
from dpflow.ledger import views as ledger_views
from dpflow.ledger.codec import decode
from dpflow.ledger.decision import admit
from dpflow.ledger.entry import Entry
from dpflow.ledger.opening import FENCE_VARIABLE
from dpflow.ledger.views.charges import newest_first
from dpflow.ledger.views.releases import values_kept
from dpflow.noise.sources import TEST_ENVIRONMENT, Seeds, replace_noise, restore_noise
from dpflow.policy import Policy, load_policies, load_policy
from dpflow.policy.files import is_policy_file
from dpflow.testing.refusals import Orders


@dataclass(frozen=True, slots=True, kw_only=True)
class ChargeMade:
    """One execution that was granted, as the journal tells of it.

    Attributes:
        step: Name of the step.
        datasets: Those that it read.
        flow: The flow that was charged, if any.
        cost: The worst case that was reserved.
        state: What became of it; "open" while its body runs.
        outcome: "completed" or "failed", once it is settled.
        noise: Who drew the noise.
        release_key: For people, if the step has one.
        accounts: The accounts that were charged.
    """

    step: str
    datasets: tuple[str, ...]
    flow: str | None
    cost: Cost
    state: Literal["open", "settled", "void", "forfeited"]
    outcome: str | None
    noise: str | None
    release_key: str | None
    accounts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseKept:
    """One release that the ledger keeps.

    Attributes:
        step: Name of the step.
        key: The release key for people; empty for one that only a flow run replays.
        value: What the body returned.
    """

    step: str
    datasets: tuple[str, ...]
    key: str
    value: Any


class LedgerForTests:
    """What a test can do with the ledger that `dpflow_ledger` gives it."""

    def __init__(self, folder: Path, orders: Orders) -> None:
        self.folder = folder
        self.url = f"sqlite:///{folder / 'ledger.db'}"
        self._orders = orders
        self._seeds = Seeds()

    @property
    def policies(self) -> Path:
        """The folder of its policies."""
        return self.folder / "policies"

    @property
    def ledger(self) -> Ledger:
        """The ledger itself, as steps use it."""
        return current_project().ledger

    def use(self, *policies: str | Path | Policy) -> None:
        """Use these policies in place of the project's.

        Args:
            *policies: YAML texts, paths of files or of folders, or policies.

        Raises:
            PolicyError: If one of them is refused.
        """
        contents = [content for each in policies for content in _contents(each)]
        for path in self.policies.glob("*.y*ml"):
            path.unlink()
        for number, content in enumerate(contents):
            (self.policies / f"{number}.yaml").write_bytes(content)
        load_policies(self.policies)

    def seed(self, seed: int) -> None:
        """Draw other noise: it is the same for the same seed. The first one is 0."""
        self._replace(Seeds(seed=seed))

    def silence_noise(self) -> None:
        """Add no noise, so that a test may compare with the true numbers."""
        self._replace(Seeds(silent=True))

    def exhaust(self, dataset: str) -> None:
        """Refuse every new charge of a dataset as `BudgetExhausted`; replays are free.

        Raises:
            UnknownDataset: If no policy governs it.
        """
        current_project().policies.policy_for(dataset)
        self._orders.exhausted.add(dataset)

    def refill(self, dataset: str) -> None:
        """Undo `exhaust`."""
        self._orders.exhausted.discard(dataset)

    def refuse_next(self, *, times: int = 1, exhausted: bool = True) -> None:
        """Refuse the next charges, of whatever step.

        Args:
            times: How many.
            exhausted: As `BudgetExhausted`; else as the ledger would: as
                `BudgetRefused` where the step was never granted so much.
        """
        require(times >= 1, f"times must be 1 or more, got {times}")
        self._orders.next += [exhausted] * times

    def charges(self, dataset: str | None = None) -> list[ChargeMade]:
        """Return the executions that were granted, oldest first."""
        charges: dict[str, list[Entry]] = {}
        for entry in self._entries(dataset):
            if entry.charge is not None and entry.kind != "refuse":
                charges.setdefault(entry.charge, []).append(entry)
        # No body runs under a run reservation; its steps have their own.
        return [
            _charge(entries)
            for entries in charges.values()
            if entries[0].body.get("covers") is None
        ]

    def releases(self, dataset: str | None = None) -> list[ReleaseKept]:
        """Return the releases that the ledger keeps, with their values, oldest first.

        They are what `release_key` names or a flow run may replay.
        """
        return [
            ReleaseKept(
                step=found.step,
                datasets=tuple(found.dataset.split(",")),
                key=found.key,
                value=decode(value),
            )
            for found, value in reversed(values_kept(self.ledger, dataset))
        ]

    def refusals(self, dataset: str | None = None) -> list[str]:
        """Return the names of the steps that were refused, oldest first."""
        entries = [e for e in self._entries(dataset) if e.kind == "refuse"]
        return [*{entry.charge: str(entry.body["step"]) for entry in entries}.values()]

    def spent(self, dataset: str) -> Mapping[str, str]:
        """Return what a dataset's account has settled, in its theorem's currency."""
        views = ledger_views.accounts(self.ledger, dataset)
        whole = ("dataset", "population")
        return next((view.spent for view in views if view.kind in whole), {})

    def _entries(self, dataset: str | None) -> list[Entry]:
        with self.ledger.storage.read() as reading:
            if dataset is None:
                return [*reading.after()]
            return [*newest_first(reading, [dataset])][::-1]

    def _replace(self, seeds: Seeds) -> None:
        ledger = self.ledger
        replace_noise(ledger.id, ledger.environment, seeds)


@contextmanager
def opened(folder: Path) -> Iterator[LedgerForTests]:
    """Make the ledger of a test in a folder, and keep every other one closed.

    The environment names it, so that pyproject.toml is not asked, and child processes
    use it too; their noise is OpenDP's.
    """
    source, orders = _project_policies(), Orders()
    ours = LedgerForTests(folder, orders)
    variables = {
        LEDGER_VARIABLE: ours.url,
        POLICIES_VARIABLE: str(ours.policies),
        WITNESS_VARIABLE: NO_WITNESS,
        ENVIRONMENT_VARIABLE: TEST_ENVIRONMENT,
        FENCE_VARIABLE: ours.url,
    }
    forget_projects()
    with mock.patch.dict(os.environ, variables):
        os.environ.pop(KEY_VARIABLE, None)
        made = create_ledger(ours.url, environment=TEST_ENVIRONMENT, witness=NO_WITNESS)
        try:
            pin_ledger(made, ours.policies)
            made.close()
            for path in [] if source is None else sorted(source.iterdir()):
                if is_policy_file(path.name):
                    (ours.policies / path.name).write_bytes(path.read_bytes())
            replace_noise(made.id, made.environment, Seeds())
            with mock.patch.multiple(
                admit, gates_of=orders.gates, refusal_error=orders.error
            ):
                yield ours
        finally:
            restore_noise(made.id)
            forget_projects()


def _project_policies() -> Path | None:
    """Return the folder of the project's policies, if it has one that can be found.

    What names the real ledger is not followed: it may be a Prefect block.
    """
    with mock.patch.dict(os.environ, {LEDGER_VARIABLE: "sqlite:///not-asked.db"}):
        folder = settings().policies
    return folder if folder.is_dir() else None


def _contents(source: str | Path | Policy) -> list[bytes]:
    """Return the YAML of what stands for one policy or a folder of them."""
    if isinstance(source, Policy):
        # JSON is YAML.
        return [source.model_dump_json(exclude_unset=True, exclude_none=True).encode()]
    if isinstance(source, str) and "\n" in source:
        return [source.encode()]
    path = Path(source)
    inside = sorted(path.iterdir()) if path.is_dir() else []
    paths = [each for each in inside if is_policy_file(each.name)] or [path]
    for each in paths:
        load_policy(each)
    return [each.read_bytes() for each in paths]


def _charge(entries: list[Entry]) -> ChargeMade:
    first = entries[0]
    states = {"settle": "settled", "void": "void", "forfeit": "forfeited"}
    ended = [entry for entry in entries if entry.kind in states]
    state: Any = states[ended[-1].kind] if ended else "open"
    end = ended[-1].body if ended else {}
    return ChargeMade(
        step=str(first.body["step"]),
        datasets=tuple(first.body["datasets"]),
        flow=first.body["flow"],
        cost=cost_from_description(first.body["cost"]),
        state=state,
        outcome=end.get("outcome"),
        noise=end.get("noise"),
        release_key=first.body["release_key"],
        accounts=tuple(first.body["accounts"]),
    )
