"""The ledger and the policies of the current project, opened once per process."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
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
from dpflow.interrupts import suppress, without_interrupts
from dpflow.ledger import (
    LOCK_NAME,
    Ledger,
    create_ledger,
    is_postgres,
    open_ledger,
    pin_ledger,
)
from dpflow.ledger.opening import conditions_at
from dpflow.ledger.requests import Conditions
from dpflow.locks import TurnQueue
from dpflow.policy import PolicySet, load_policies
from dpflow.policy.files import is_policy_file


@dataclass(frozen=True, slots=True)
class Project:
    """A project whose ledger stays open, and its policies.

    Attributes:
        settings: Places of the project.
        ledger: Opened, and checked against the pinned id.
        unsettled: Charges of this process whose settlement failed.
        policies: As the files say now.
        files: The stamp of each policy file, by its path.
    """

    settings: Settings
    ledger: Ledger
    unsettled: Unsettled
    policies: PolicySet
    files: Mapping[str, Stamp]


_lock = TurnQueue()
#: How long a thread waits for another that opens the ledger.
_THREAD_SECONDS = 120.0
_projects: dict[Settings, Project] = {}
#: The settings under which the body of each step ran first.
_of_steps: WeakKeyDictionary[Callable[..., Any], Settings] = WeakKeyDictionary()


def project_of_step(name: str, body: Callable[..., Any] | None) -> Project:
    """Return the project that a step is charged in, and keep it for the process.

    Args:
        name: Name of the step, for the message.
        body: Its function, which belongs to the project of its first run.

    Raises:
        ConfigurationError: If the step ran in another project before.
        DpflowError: As `current_project`.
    """
    setup = settings()
    first = setup if body is None else _of_steps.get(body, setup)
    require(
        (first.ledger_url, first.policies) == (setup.ledger_url, setup.policies),
        f"step {name!r} belongs to the project in {first.root}, where it ran first, "
        f"and this run belongs to the project in {setup.root}. The charge would be in "
        "the wrong ledger, and the step did not run. Run the two projects in two "
        "processes.",
    )
    project = current_project(setup)
    keep_settings(setup)
    if body is not None:
        _of_steps[body] = setup
    return project


def bind_step(body: Callable[..., Any], root: Path) -> None:
    """Bind a step that came from another process to its project, if that is here."""
    if root.is_dir():
        _of_steps[body] = settings(root)
        keep_settings(_of_steps[body])


def current_project(setup: Settings | None = None) -> Project:
    """Return the project of the flow run, the process or the working directory.

    The ledger stays open; policy files are read again only when one has changed.

    Args:
        setup: Its settings, if they were read.

    Raises:
        LedgerError: If the ledger is missing, out of reach or not the pinned one.
        PolicyError: If a policy file cannot be used.
        ConfigurationError: If the settings cannot be read.
    """
    setup = setup or settings()
    project = _projects.get(setup)
    if project is not None and project.files == _stamps(setup.policies):
        return project
    try:
        return _lock.run(lambda: _read_project(setup), _THREAD_SECONDS)
    except without_interrupts(TimeoutError) as error:
        msg = f"the ledger is not open yet: {error.strerror}. Try again."
        raise LedgerUnavailable(msg, waited=_THREAD_SECONDS) from None


def project_label() -> str:
    """Return the label of the project of this call, whose ledger is open."""
    setup = settings()
    project = _projects.get(setup)
    return setup.label("" if project is None else project.ledger.id)


def _read_project(setup: Settings) -> Project:
    # Before the files: whatever changes from here on is seen at the next look.
    project, files = _projects.get(setup), _stamps(setup.policies)
    if project is None or project.files != files:
        policies = load_policies(setup.policies)
        ledger = project_ledger(setup) if project is None else project.ledger
        unsettled = Unsettled(ledger) if project is None else project.unsettled
        project = Project(setup, ledger, unsettled, policies, files)
        _projects[setup] = project
    return project


def _stamps(policies: Path) -> Mapping[str, Stamp]:
    names: list[str] = []
    # `load_policies` says in dpflow's words why a folder cannot be read.
    with suppress(OSError):
        names = os.listdir(policies)  # noqa: PTH208 (texts are quicker)
    paths = [f"{policies}/{name}" for name in names if is_policy_file(name)]
    return {path: file_stamp(path) for path in paths}


def project_ledger(setup: Settings, *, read_only: bool = False) -> Ledger:
    """Open the ledger of a project, checked and with who acts.

    Args:
        setup: Where it is.
        read_only: Only show it: the database refuses every write.

    Raises:
        LedgerError: If the ledger is missing, out of reach or not the pinned one.
        ConfigurationError: If it serves another environment.
    """
    try:
        return open_ledger(
            setup.ledger_url,
            policies=setup.policies,
            witness=setup.witness,
            environment=setup.environment,
            conditions=project_conditions(setup),
            read_only=read_only,
        )
    except LedgerMissing as error:
        if not (setup.policies / LOCK_NAME).exists():
            raise
        url = error.details["ledger"]
        msg = (
            f"{short_path(setup.policies / LOCK_NAME)} pins a ledger that is not at "
            f"{url}. A new ledger would forget what was spent. Set DPFLOW_LEDGER_URL "
            "to the place of the pinned ledger, or restore it."
        )
        raise LedgerMissing(msg, ledger=url) from None


def project_conditions(setup: Settings) -> Conditions:
    """Return who acts in a project, with which code, for the journal."""
    # On a shared ledger an operator applies the policies.
    applies = not is_postgres(setup.ledger_url)
    return conditions_at(setup.root, applies_policies=applies)


def make_project_ledger(setup: Settings) -> Ledger:
    """Make the ledger of a project, pin its id, and close it.

    Args:
        setup: Where it is to be.

    Raises:
        LedgerError: If one is there already, or its place cannot be written.
    """
    options = {"environment": setup.environment, "witness": setup.witness}
    with closing(create_ledger(setup.ledger_url, **options)) as ledger:
        pin_ledger(ledger, setup.policies)
    return ledger


def people_folder(setup: Settings) -> Path:
    """Return the folder of the stores: private data, by default in the ledger's folder.

    Raises:
        ConfigurationError: If the ledger is no file and no setting names a folder.
    """
    if setup.people is not None:
        return setup.people
    require(
        not is_postgres(setup.ledger_url),
        "the store of people has no folder. Set `people` in [tool.dpflow] of "
        "pyproject.toml, or DPFLOW_PEOPLE, to a private folder of all workers.",
    )
    return Path(setup.ledger_url.removeprefix("sqlite:///")).parent / "people"


def forget_projects() -> None:
    """Close what is open; tests use it, and programs that delete a ledger.

    The next step finds its project anew.
    """

    def forget() -> None:
        forget_settings()
        _of_steps.clear()
        for project in _projects.values():
            project.unsettled.forget()
            project.ledger.close()
        _projects.clear()

    _lock.run(forget, _THREAD_SECONDS)
