"""The ledger of a test: its policies, noise, refusals and charges."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import Any, NamedTuple
from unittest import mock

from dpflow.accounting.costs.base import Cost, cost_from_description
from dpflow.config import (
    ENVIRONMENT_VARIABLE,
    LEDGER_VARIABLE,
    NO_WITNESS,
    POLICIES_VARIABLE,
    WITNESS_VARIABLE,
    settings,
)
from dpflow.exceptions import require
from dpflow.guard.project import current_project, forget_projects
from dpflow.ledger import LOCK_NAME, Ledger, create_ledger, pin_ledger, views
from dpflow.ledger.codec import decode
from dpflow.ledger.decisions import reserve
from dpflow.ledger.opening import FENCE_VARIABLE
from dpflow.ledger.views.releases import release_value, releases
from dpflow.ledger.views.runs import JournalCharge, add_costs, read_charges
from dpflow.noise.sources import TEST_ENVIRONMENT, Seeds, replace_noise, restore_noise
from dpflow.policy import Policy, load_policies
from dpflow.policy.files import is_policy_file
from dpflow.testing.refusals import ForcedRefusals


@dataclass(frozen=True, slots=True, kw_only=True)
class ChargeMade:
    """One granted execution, as the journal describes it.

    Attributes:
        step: Name of the step.
        datasets: The datasets of the step.
        flow: The charged flow, if any.
        cost: The reserved worst case.
        state: State of the charge; "open" while the body runs.
        outcome: "completed" or "failed", once it is settled.
        noise: The source of the noise.
        release_key: The release key, if the step has one.
        accounts: The charged accounts.
    """

    step: str
    datasets: tuple[str, ...]
    flow: str | None
    cost: Cost
    state: str
    outcome: str | None
    noise: str | None
    release_key: str | None
    accounts: tuple[str, ...]


class ReleaseKept(NamedTuple):
    """One release in the ledger.

    Attributes:
        step: Name of the step.
        key: The release key; empty for a release that only a flow run replays.
        value: The value that the body returned.
    """

    step: str
    datasets: tuple[str, ...]
    key: str
    value: Any


class LedgerForTests:
    """The ledger of a test: the value of the fixture `dpflow_ledger`."""

    def __init__(self, folder: Path, refusals: ForcedRefusals) -> None:
        self.policies = folder / "policies"
        self.url = f"sqlite:///{folder / 'ledger.db'}"
        self._refusals = refusals

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
        contents = [content for policy in policies for content in _contents(policy)]
        for path in self.policies.glob("*.y*ml"):
            path.unlink()
        for number, content in enumerate(contents):
            (self.policies / f"{number}.yaml").write_bytes(content)
        load_policies(self.policies)

    def seed(self, seed: int) -> None:
        """Draw the noise of another seed; a test begins with seed 0."""
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
        self._refusals.exhausted.add(dataset)

    def refill(self, dataset: str) -> None:
        """Undo `exhaust`."""
        self._refusals.exhausted.discard(dataset)

    def refuse_next(self, *, times: int = 1) -> None:
        """Refuse the next charges of all steps as `BudgetExhausted`.

        Args:
            times: Number of charges.
        """
        require(times >= 1, f"times must be 1 or more, got {times}")
        self._refusals.next += times

    def charges(self, dataset: str | None = None) -> list[ChargeMade]:
        """Return the granted executions, oldest first."""
        with views.open_reading(self.ledger) as reading:
            charges = dict[str, JournalCharge]()
            for name in reading.names(dataset):
                own = add_costs(reading, name, read_charges(reading, name))
                charges |= {charge.id: charge for charge in own}
        every = sorted(charges.values(), key=lambda charge: charge.at)
        return [_charge(charge) for charge in every]

    def releases(self, dataset: str | None = None) -> list[ReleaseKept]:
        """Return the releases that the ledger keeps, with their values, oldest first.

        A release has a release key or may be replayed by its flow run.
        """
        stored = [r for r in releases(self.ledger, dataset) if r.size is not None]
        values = (decode(release_value(self.ledger, r.row.key)[1]) for r in stored)
        fields = ((r.step, (*r.dataset.split(","),), r.key) for r in stored)
        return [ReleaseKept(*f, v) for f, v in zip(fields, values, strict=True)][::-1]

    def refusals(self, dataset: str | None = None) -> list[str]:
        """Return the names of the refused steps, oldest first."""
        bodies = [refusal.body for refusal in views.refusals(self.ledger)][::-1]
        wanted = (b for b in bodies if dataset in (None, *b.get("datasets", ())))
        return [str(body["step"]) for body in wanted]

    def spent(self, dataset: str) -> Mapping[str, str]:
        """Return the settled amount of a dataset's account, in its filter's units."""
        accounts = views.accounts(self.ledger, dataset)
        own = (a for a in accounts if a.kind in ("dataset", "population"))
        return next((account.spent for account in own), {})

    def _replace(self, seeds: Seeds) -> None:
        replace_noise(self.ledger.id, self.ledger.environment, seeds)


@contextmanager
def open_for_tests(folder: Path) -> Iterator[LedgerForTests]:
    """Make the ledger of a test in a folder, and keep every other one closed.

    The environment names it, so that child processes use it, too, with OpenDP's noise.
    """
    source, refusals = _project_policies(), ForcedRefusals()
    ours = LedgerForTests(folder, refusals)
    variables = {
        LEDGER_VARIABLE: ours.url,
        POLICIES_VARIABLE: str(ours.policies),
        WITNESS_VARIABLE: NO_WITNESS,
        ENVIRONMENT_VARIABLE: TEST_ENVIRONMENT,
        FENCE_VARIABLE: ours.url,
    }
    forget_projects()
    with mock.patch.dict(os.environ, variables):
        witness, environment = NO_WITNESS, TEST_ENVIRONMENT
        ledger = create_ledger(ours.url, environment=environment, witness=witness)
        try:
            if source.is_dir():
                copytree(source, ours.policies, ignore=ignore_patterns(LOCK_NAME))
            pin_ledger(ledger, ours.policies)
            ledger.close()
            replace_noise(ledger.id, ledger.environment, Seeds())
            with mock.patch.multiple(
                reserve, gates_of=refusals.gates, refusal_error=refusals.error
            ):
                yield ours
        finally:
            restore_noise(ledger.id)
            forget_projects()


def _project_policies() -> Path:
    """Return the folder of the project's policies; its ledger's URL is not read."""
    with mock.patch.dict(os.environ, {LEDGER_VARIABLE: "sqlite:///not-read.db"}):
        return settings().policies


def _contents(source: str | Path | Policy) -> list[bytes]:
    """Return the YAML of what stands for one policy or a folder of them."""
    if isinstance(source, Policy):
        # JSON is YAML.
        return [source.model_dump_json(exclude_unset=True, exclude_none=True).encode()]
    if isinstance(source, str) and "\n" in source:
        return [source.encode()]
    path = Path(source)
    inside = sorted(path.iterdir()) if path.is_dir() else []
    paths = [file for file in inside if is_policy_file(file.name)] or [path]
    return [file.read_bytes() for file in paths]


def _charge(charge: JournalCharge) -> ChargeMade:
    body = charge.body
    return ChargeMade(
        step=body["step"],
        datasets=tuple(body["datasets"]),
        flow=charge.flow,
        cost=cost_from_description(body["cost"]),
        state=charge.state,
        outcome=body.get("outcome"),
        noise=body.get("noise"),
        release_key=body["release_key"],
        accounts=tuple(charge.amounts),
    )
