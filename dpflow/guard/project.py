"""The ledger and the policies of the current project, opened once per process."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from dpflow.config import (
    Settings,
    Stamp,
    file_stamp,
    forget_settings,
    keep_settings,
    settings,
    short_path,
)
from dpflow.exceptions import LedgerMissing, LedgerUnavailable, require
from dpflow.guard.late_settlements import Unsettled
from dpflow.ledger import (
    LOCK_NAME,
    Ledger,
    create_ledger,
    is_postgres,
    open_ledger,
    pin_ledger,
)
from dpflow.ledger.provenance import provenance
from dpflow.ledger.records import Conditions
from dpflow.locks import Lock
from dpflow.policy import PolicySet, load_policies
from dpflow.policy.files import is_policy_file
from dpflow.policy.population import PREFIX


@dataclass(frozen=True, slots=True)
class Project:
    """What the guard needs of a project.

    Attributes:
        settings: Where things are.
        ledger: Opened, and checked against the pinned id.
        policies: As the files say now.
        unsettled: Charges of this process whose settlement failed.
    """

    settings: Settings
    ledger: Ledger
    policies: PolicySet
    unsettled: Unsettled


@dataclass(frozen=True, slots=True)
class _Known:
    """A project whose ledger stays open, and the files that it was read from.

    Attributes:
        project: The project.
        folder: Stamp of the policies' folder: another one when names come or go.
        files: The stamp of each policy file, by its path.
    """

    project: Project
    folder: Stamp
    files: Mapping[str, Stamp]

    def is_current(self, datasets: Sequence[str]) -> bool:
        """Say whether the files that govern some datasets are as they were read.

        Which other files there are matters, not what they say: a dataset's own file
        names the population that is charged with it.
        """
        policies = self.project.policies
        if file_stamp(str(self.project.settings.policies)) != self.folder:
            return False
        if not policies.policies.keys() >= {*datasets}:
            return False
        populations = (policies[dataset].population for dataset in datasets)
        names = [*datasets, *(f"{PREFIX}{name}" for name in populations if name)]
        paths = (str(policies.sources[name]) for name in names)
        return all(file_stamp(path) == self.files.get(path) for path in paths)


_lock = Lock()
#: How long a thread waits for another that opens the ledger.
_THREAD_SECONDS = 120.0
_known: dict[Settings, _Known] = {}
#: The settings under which the body of each step ran first.
_of_steps: WeakKeyDictionary[Callable[..., Any], Settings] = WeakKeyDictionary()


def project_of_step(
    name: str, body: Callable[..., Any] | None, datasets: Sequence[str]
) -> Project:
    """Return the project that a step is charged in, and keep it for the process.

    Args:
        name: Name of the step, for the message.
        body: Its function, which belongs to the project of its first run.
        datasets: As `current_project`.

    Raises:
        ConfigurationError: If the step ran in another project before.
        DpflowError: As `current_project`.
    """
    found = settings()
    first = found if body is None else _of_steps.get(body, found)
    require(
        (first.ledger_url, first.policies) == (found.ledger_url, found.policies),
        f"step {name!r} belongs to the project in {first.root}, where it ran first, "
        f"and this run belongs to the project in {found.root}. The charge would be in "
        "the wrong ledger, and the step did not run. Run the two projects in two "
        "processes.",
    )
    project = _open_project(found, datasets)
    keep_settings(found)
    if body is not None:
        _of_steps[body] = found
    return project


def bind_step(body: Callable[..., Any], root: Path) -> None:
    """Bind a step that came from another process to its project, if that is here."""
    if root.is_dir():
        _of_steps[body] = settings(root)
        keep_settings(_of_steps[body])


def current_project(datasets: Sequence[str] = ()) -> Project:
    """Return the project of the flow run, the process or the working directory.

    The ledger stays open; policy files are read again only when one has changed.

    Args:
        datasets: Whose policies are needed: only files that govern these are looked
            at. Default: all.

    Raises:
        LedgerError: If the ledger is missing, out of reach or not the pinned one.
        PolicyError: If a policy file cannot be used.
        ConfigurationError: If the settings cannot be read.
    """
    return _open_project(settings(), datasets)


def _open_project(found: Settings, datasets: Sequence[str]) -> Project:
    if datasets and (known := _known.get(found)) and known.is_current(datasets):
        return known.project
    try:
        return _lock.run(lambda: _looked_at(found), _THREAD_SECONDS)
    except TimeoutError as error:
        msg = f"the ledger is not open yet: {error.strerror}. Try again."
        raise LedgerUnavailable(msg, waited=_THREAD_SECONDS) from None


def _looked_at(found: Settings) -> Project:
    """Return a project after a look at all of its policy files."""
    known = _known.get(found)
    # Before the files: whatever changes from here on is seen at the next look.
    folder = file_stamp(str(found.policies))
    files = _stamps(found.policies)
    if known is None:
        policies, ledger = load_policies(found.policies), project_ledger(found)
        project = Project(found, ledger, policies, Unsettled(ledger))
    elif known.files != files:
        project = replace(known.project, policies=load_policies(found.policies))
    else:
        project = known.project
    _known[found] = _Known(project, folder, files)
    return project


def project_ledger(found: Settings, *, read_only: bool = False) -> Ledger:
    """Open the ledger of a project, checked and with who acts.

    Args:
        found: Where it is.
        read_only: Only show it: the database refuses every write.

    Raises:
        LedgerError: If the ledger is missing, out of reach or not the pinned one.
        ConfigurationError: If it serves another environment.
    """
    try:
        return open_ledger(
            found.ledger_url,
            policies=found.policies,
            witness=found.witness,
            environment=found.environment,
            conditions=project_conditions(found),
            read_only=read_only,
        )
    except LedgerMissing as error:
        if not (found.policies / LOCK_NAME).exists():
            raise
        place = error.details["ledger"]
        msg = (
            f"{short_path(found.policies / LOCK_NAME)} pins a ledger that is not at "
            f"{place}. A new ledger would forget what was spent. Set DPFLOW_LEDGER_URL "
            "to the place of the pinned ledger, or restore it; a colleague's clone has "
            "none."
        )
        raise LedgerMissing(msg, ledger=place) from None


def project_conditions(found: Settings) -> Conditions:
    """Return who acts in a project, with which code, for the journal."""
    return Conditions(
        facts=provenance(found.root),
        # On a shared ledger an operator applies the policies.
        applies_policies=not is_postgres(found.ledger_url),
    )


def make_project_ledger(found: Settings) -> Ledger:
    """Make the ledger of a project, pin its id, and close it.

    Args:
        found: Where it is to be.

    Raises:
        LedgerError: If one is there already, or its place cannot be written.
    """
    place, environment = found.ledger_url, found.environment
    made = create_ledger(place, environment=environment, witness=found.witness)
    with closing(made) as ledger:
        pin_ledger(ledger, found.policies)
    return ledger


def forget_projects() -> None:
    """Close what is open; tests use it, and programs that delete a ledger.

    The next step finds its project anew.
    """

    def forget() -> None:
        forget_settings()
        _of_steps.clear()
        for known in _known.values():
            known.project.unsettled.forget()
            known.project.ledger.close()
        _known.clear()

    _lock.run(forget, _THREAD_SECONDS)


def _stamps(directory: Path) -> Mapping[str, Stamp]:
    folder = str(directory)
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208 (texts are quicker)
    except OSError:
        # `load_policies` says what is wrong, in dpflow's words.
        return {}
    paths = [f"{folder}/{name}" for name in names if is_policy_file(name)]
    return {path: file_stamp(path) for path in paths}
