"""Which policy governs a dataset, with what budget, and what was charged under it.

The ledger's copy of a policy governs wherever there is one; the files only speak for
datasets that the ledger does not know yet. Whatever foresees or compares asks here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from dpflow.config import settings, short_path
from dpflow.exceptions import ConfigurationError, LedgerMissing, require
from dpflow.forecast.counting import Pinned
from dpflow.guard.inspection import Tell, as_warning, inspect_ledger
from dpflow.ledger import Ledger
from dpflow.ledger.decisions.gates import Gate
from dpflow.ledger.views.accounts import check_dataset, find_datasets, standing_gates
from dpflow.ledger.views.runs import DatasetRuns, dataset_runs
from dpflow.ledger.views.terms import newest_term
from dpflow.policy import PolicySet
from dpflow.policy.files import readable_policies
from dpflow.policy.population import PREFIX, population_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Governed:
    """A dataset under the policy that governs it.

    Attributes:
        pinned: What `Policy.to_pinned` returned, from the ledger or from the file.
        population: As `pinned`, of the dataset's population.
        runs: What was charged in the newest term; None if the policy is the file's.
        accounts: The gates to which something was charged, by their accounts' ids.
    """

    dataset: str
    pinned: Pinned
    population: Pinned | None = None
    runs: DatasetRuns | None = None
    accounts: Mapping[str, Gate] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectSource:
    """A project's ledger and policies, as far as there are any.

    Attributes:
        missing: The error that says why there is no ledger.
        policies: As the files say; none, and why, if they cannot be read.
    """

    ledger: Ledger | None
    missing: LedgerMissing | None
    policies: PolicySet

    @property
    def datasets(self) -> list[str]:
        """The datasets that the ledger or a policy knows, without populations."""
        names = set(self.policies)
        if self.ledger is not None:
            names = find_datasets(self.ledger, self.policies)
        return sorted(name for name in names if not name.startswith(PREFIX))

    def require_ledger(self) -> Ledger:
        """Return the ledger.

        Raises:
            LedgerMissing: If the project has no ledger.
        """
        if self.ledger is None:
            reason = "" if self.missing is None else self.missing.message
            raise LedgerMissing(reason) from self.missing
        return self.ledger

    def chosen(
        self, dataset: str | None, *, among: Collection[str] | None = None
    ) -> str:
        """Return the dataset: the one named, or the only one.

        Args:
            dataset: The one named, if one was.
            among: The datasets that come into question. Default: all.

        Raises:
            ConfigurationError: If there are several, or none.
        """
        if self.ledger is None:
            self._check_files()
        if dataset is not None:
            return dataset
        datasets = sorted(self.datasets if among is None else among)
        if len(datasets) == 1:
            return datasets[0]
        problem = self.policies.problem
        require(bool(datasets) or problem is None, str(problem))
        names = ", ".join(datasets) or "none yet"
        msg = f"name one DATASET of: {names}"
        raise ConfigurationError(msg)

    def _check_files(self) -> None:
        require(self.policies.problem is None, str(self.policies.problem))
        if not self.policies:
            folder = short_path(self.policies.directory or settings().policies)
            msg = (
                f"there is neither a ledger nor a policy in {folder}/. `dpflow init` "
                "makes both."
            )
            raise ConfigurationError(msg)

    def read_governed(self, dataset: str, *, fresh: bool = False) -> Governed:
        """Return the policy that governs a dataset, and what was charged under it.

        Args:
            dataset: Its name.
            fresh: Take the file, if there is one, as a new term would.

        Raises:
            UnknownDataset: If neither the ledger nor a policy knows it.
            ConfigurationError: If the policies, which may know it, cannot be read.
        """
        ledger = self.ledger
        if ledger is None or (fresh and dataset in self.policies):
            return self._of_file(dataset)
        runs = dataset_runs(ledger, dataset)
        if runs is None:
            return self._of_file(dataset)
        body = runs.term.fields
        name = population_of(body["pinned"])
        above = None if name is None else newest_term(ledger, name)
        return Governed(
            dataset=dataset,
            pinned=body["pinned"],
            population=None if above is None else above.fields["pinned"],
            runs=runs,
            accounts=standing_gates(ledger, dataset),
        )

    def _of_file(self, dataset: str) -> Governed:
        if self.ledger is not None and dataset not in self.policies:
            check_dataset(self.ledger, self.policies, dataset)
        policy = self.policies.policy_for(dataset)
        above = [group.to_pinned() for group in self.policies.populations_of([policy])]
        population = above[0] if above else None
        pinned = policy.to_pinned()
        return Governed(dataset=dataset, pinned=pinned, population=population)


@contextmanager
def project_source(tell: Tell = as_warning) -> Iterator[ProjectSource]:
    """Open what the current project has of ledger and policies, to read it.

    Args:
        tell: Called if the ledger forgot charges, so that what it says is too small.

    Raises:
        LedgerError: If there is a ledger and it cannot be used.
        ConfigurationError: If the settings or the pin cannot be read.
    """
    setup = settings()
    policies = readable_policies(setup.policies)
    with ExitStack() as stack:
        ledger, missing = None, None
        try:
            ledger = stack.enter_context(inspect_ledger(setup, tell=tell))
        except LedgerMissing as error:
            missing = error
        yield ProjectSource(ledger=ledger, missing=missing, policies=policies)
