"""What a page shows of a ledger, read in a few short transactions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from fractions import Fraction

from dpflow.config import Settings
from dpflow.exceptions import LedgerCorrupt
from dpflow.forecast import Outlook, budget_line
from dpflow.guard.inspection import inspect_ledger
from dpflow.ledger import Ledger, split_account, views
from dpflow.ledger.views.accounts import AlertView
from dpflow.ledger.views.reading import OpenReservation, Reading, open_reading
from dpflow.ledger.views.releases import KeptRelease, count_releases, releases
from dpflow.ledger.views.spending import spending
from dpflow.notebook import Sheet
from dpflow.policy import PolicySet
from dpflow.policy.files import readable_policies
from dpflow.show.figures.burndown import BurnDown
from dpflow.show.history import decisions_sheet
from dpflow.show.page.stamp import Stamp
from dpflow.show.sheets import steps_sheet
from dpflow.show.status import DatasetStatus, status_of
from dpflow.show.why import RefusalGroup, list_refused

_MOST_REFUSALS, _MOST_RELEASES, _MOST_RESERVATIONS = 20, 200, 100
_MOST_DECISIONS = 1000
_BY_STEP = ("step", "flow", "cost", "noise")


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One dataset on a page.

    Attributes:
        thresholds: The shares at which the policy alerts.
        refusals: The newest refusals of all terms, equal ones together.
        decisions: What people decided, newest first.
        steps: Declared costs by step.
    """

    status: DatasetStatus
    thresholds: tuple[Fraction, ...]
    alerts: tuple[AlertView, ...]
    refusals: tuple[RefusalGroup, ...]
    decisions: Sheet
    steps: Sheet
    burn_down: BurnDown | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Report:
    """Facts of a page.

    Attributes:
        warnings: What is wrong with the policies or the ledger, in words.
        flows: What limits each flow that charges several datasets.
        reservations: Charges that no process has settled, oldest first.
        releases: The newest releases, without their values.
        kept: Number of stored releases.
        stamp: The result of a verification; None without one.
    """

    ledger: str
    place: str
    at: str
    warnings: tuple[str, ...]
    sections: tuple[Section, ...] = ()
    flows: tuple[Outlook, ...] = ()
    reservations: tuple[OpenReservation, ...] = ()
    held: int = 0
    releases: tuple[KeptRelease, ...] = ()
    kept: int = 0
    stamp: Stamp | None = None


def read_report(
    setup: Settings,
    dataset: str | None = None,
    *,
    stamp: Callable[[Ledger], Stamp] | None = None,
) -> Report:
    """Read what a page shows; the ledger is opened for reading only.

    Args:
        setup: Where the project's ledger and policies are.
        dataset: Only this dataset. Default: all.
        stamp: Verifies the ledger; None leaves that out.

    Raises:
        LedgerError: If the ledger is missing, out of reach or not the pinned one.
        UnknownDataset: If neither the ledger nor a policy knows the dataset.
    """
    problems: list[str] = []
    # A verification compares the witness, too.
    tell = problems.append if stamp is None else None
    with inspect_ledger(setup, tell=tell) as ledger:
        stamped = None if stamp is None else stamp(ledger)
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        url, warnings = ledger.address, tuple(problems)
        empty = Report(ledger.id, url, at=at, warnings=warnings, stamp=stamped)
        try:
            with open_reading(ledger, watched=True) as reading:
                return _collect(setup, reading, dataset, empty)
        except LedgerCorrupt as error:
            if stamped is None or stamped.found.fine:
                raise
            return replace(empty, warnings=(*empty.warnings, error.message))


def _collect(
    setup: Settings, reading: Reading, dataset: str | None, empty: Report
) -> Report:
    status = status_of(setup, reading, dataset)
    policies = readable_policies(setup.policies)
    held = []
    for charge in views.open_reservations(reading):
        datasets = {split_account(name)[0] for name in charge.body["accounts"]}
        if dataset is None or dataset in datasets:
            held.append(charge)
    return replace(
        empty,
        warnings=(*empty.warnings, *status.warnings),
        sections=tuple(_section(reading, part, policies) for part in status.datasets),
        flows=status.flows,
        reservations=tuple(held[:_MOST_RESERVATIONS]),
        held=len(held),
        releases=tuple(releases(reading, dataset, _MOST_RELEASES)),
        kept=count_releases(reading, dataset),
    )


def _section(reading: Reading, status: DatasetStatus, policies: PolicySet) -> Section:
    name, line = status.standing.dataset, budget_line(status.outlooks)
    shares = tuple(map(Fraction, getattr(policies.get(name), "alerts", ())))
    result = list_refused(reading, name, None)
    groups = [
        (view.number, group)
        for view in status.terms
        for group in spending(reading, name, _BY_STEP, term=view.number)[0]
    ]
    return Section(
        status=status,
        thresholds=shares,
        alerts=tuple(views.alerts(reading, name)),
        refusals=tuple(result[:_MOST_REFUSALS]),
        decisions=decisions_sheet(
            views.history(reading, name, limit=_MOST_DECISIONS, decisions=True)
        ),
        steps=steps_sheet(groups),
        burn_down=BurnDown.read(reading, name, alerts=shares, line=line),
    )
