"""Used budget and remaining runs, as one record for commands and notebooks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from dpflow.config import Settings, settings, short_path
from dpflow.exceptions import require
from dpflow.forecast import Outlook, flow_outlooks, outlooks
from dpflow.guard.inspection import Tell, as_warning, inspect_ledger
from dpflow.ledger import TermView, view_policy, views
from dpflow.ledger.decisions.refusals import frozen_text
from dpflow.ledger.views.accounts import Standing, standings
from dpflow.ledger.views.entries import percent_text
from dpflow.ledger.views.reading import Source, open_reading
from dpflow.notebook import Sheet, TableRecord
from dpflow.policy import PolicySet
from dpflow.policy.files import readable_policies
from dpflow.show.guarantees import odds_in_words, term_guarantee, terms_in_words
from dpflow.show.overview import Overview, overview


@dataclass(frozen=True, slots=True, kw_only=True)
class Status(TableRecord):
    """Where each dataset of a project stands: what `dpflow status` shows.

    In a notebook it is a table.

    Attributes:
        ledger: Id of the ledger.
        place: Where it is.
        datasets: One for each, by name.
        flows: The first refusal of each flow that charges several datasets.
        warnings: What is odd about the policy files.
        disk_is_low: Whether less than ten times the needed disk space is free.
        witness_has_problem: Whether the witness is out of reach or lacks charges.
    """

    ledger: str
    place: str
    datasets: tuple[DatasetStatus, ...]
    flows: tuple[Outlook, ...]
    warnings: tuple[str, ...]
    disk_is_low: bool = field(default=False, repr=False)
    witness_has_problem: bool = field(default=False, repr=False)

    def sheet(self) -> Sheet:
        """Return its table."""
        heads = ("dataset", "state", "used", "flows")
        rows = []
        for dataset in self.datasets:
            overview, used = dataset.overview, percent_text(dataset.used)
            flows = (f"{f.flow or '(no flow)'}: {f.text}" for f in overview.flows)
            cells = overview.state.text, used, "; ".join(flows)
            rows.append((dataset.standing.dataset, *cells))
        return Sheet(heads, rows)


def status(
    dataset: str | None = None, *, part: str | None = None, tell: Tell = as_warning
) -> Status:
    """State of datasets and flows, their use, and the runs that remain.

    Nothing is charged, and nothing is written.

    Args:
        dataset: Only this one. Default: all of the project.
        part: Only this part of the dataset, and what binds all of them.
        tell: Hears what is wrong with numbers that are printed all the same.

    Raises:
        UnknownDataset: If neither the ledger nor a policy knows it.
        LedgerError: If the ledger is missing or out of reach.

    Examples:
        >>> status("orders").datasets[0].standing.accounts
    """
    setup = settings()
    with inspect_ledger(setup, tell=None) as ledger:
        return status_of(setup, ledger, dataset, part, tell=tell)


def status_of(
    setup: Settings,
    source: Source,
    dataset: str | None = None,
    part: str | None = None,
    *,
    tell: Tell | None = None,
) -> Status:
    """Return the same of an open ledger, in one snapshot."""
    msg = f"several datasets may have a part {part!r}. Name the dataset, too."
    require(part is None or dataset is not None, msg)
    policies = readable_policies(setup.policies)
    with open_reading(source, watched=True) as reading:
        ledger, problem = reading.ledger, reading.problem
        if tell is not None and problem is not None:
            tell(problem)
        shown = standings(reading, policies, dataset, part)
        ahead = outlooks(reading, dataset)
        refusals = views.refusals(reading)
        refused = Counter((entry.dataset, entry.term) for entry in refusals)
        datasets = []
        for standing in shown:
            name = standing.dataset
            terms = tuple(views.terms(reading, name))
            own = tuple(outlook for outlook in ahead if outlook.dataset == name)
            status = DatasetStatus(
                standing=standing,
                overview=overview(reading, standing, own),
                terms=terms,
                outlooks=own,
                refused=refused[name, standing.term or 0],
                guarantee=term_guarantee(standing.pinned, terms),
                odds=odds_in_words(
                    standing.pinned, terms or [view_policy(policies.policy_for(name))]
                ),
            )
            datasets.append(status)
    return Status(
        ledger=ledger.id,
        place=ledger.address,
        datasets=tuple(datasets),
        flows=tuple(flow_outlooks(ahead)),
        warnings=(*filter(None, [policies.problem]), *_changes(policies, shown)),
        disk_is_low=ledger.database.is_space_low,
        witness_has_problem=problem is not None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetStatus:
    """All facts about a dataset in its newest term.

    Attributes:
        outlooks: Further runs of each flow.
        refused: Its refused steps, of the newest thousand of the ledger.
        guarantee: The guarantee with its assumptions.
        odds: How often a guess about one privacy unit is right, in words.
    """

    standing: Standing
    overview: Overview
    terms: tuple[TermView, ...]
    outlooks: tuple[Outlook, ...]
    refused: int
    guarantee: str
    odds: str

    @property
    def history(self) -> str:
        """The terms in words, if there are several."""
        return terms_in_words(self.terms) if len(self.terms) > 1 else ""

    @property
    def frozen(self) -> str:
        """Who froze the dataset and why, or ""."""
        freeze = self.terms[-1].frozen if self.terms else None
        return "" if freeze is None else frozen_text(freeze)

    @property
    def used(self) -> float | None:
        """The largest used share of a budget; None without one."""
        shares = (share.fraction for share in self.overview.spent)
        return max((share for share in shares if share is not None), default=None)


def _changes(policies: PolicySet, shown: Sequence[Standing]) -> Iterator[str]:
    for standing in shown:
        if not standing.differences:
            continue
        path = short_path(policies.source(standing.dataset))
        then = (
            "Nothing was charged yet, so the next step applies the file."
            if standing.replaceable
            else "The ledger's copy governs and steps are refused: undo the edit, or "
            f"see `dpflow policy diff {standing.dataset}`."
        )
        differences = "; ".join(standing.differences)
        yield f"{path} differs from the ledger: {differences}. {then}"
