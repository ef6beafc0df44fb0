"""What is gone and what is left, as one record for commands and notebooks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dpflow.config import Settings, settings, short_path
from dpflow.exceptions import ConfigurationError
from dpflow.forecast import Outlook, flow_outlooks, outlooks
from dpflow.guard.inspection import Tell, as_warning, inspected
from dpflow.ledger import Ledger, views
from dpflow.ledger.decision.refusal import frozen_text
from dpflow.ledger.records import TermView
from dpflow.ledger.views.standing import Standing, standings
from dpflow.ledger.views.words import percent_text
from dpflow.notebook import Sheet, TableRecord
from dpflow.policy import PolicySet
from dpflow.policy.files import policies_and_problem
from dpflow.show.guarantees import term_guarantee, terms_in_words
from dpflow.show.overview import Overview, overview, pauses


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
    """

    ledger: str
    place: str
    datasets: tuple[DatasetStatus, ...]
    flows: tuple[Outlook, ...]
    warnings: tuple[str, ...]

    def sheet(self) -> Sheet:
        """Return its table."""
        heads = ("dataset", "state", "used", "flows")
        return Sheet(heads, [_cells(each) for each in self.datasets])


def _cells(known: DatasetStatus) -> tuple[str, ...]:
    name, found = known.standing.dataset, known.overview
    flows = "; ".join(f"{e.flow or '(no flow)'}: {e.text}" for e in found.flows)
    return name, found.state.text, percent_text(known.used), flows


def status(
    dataset: str | None = None,
    *,
    part: str | None = None,
    tell: Tell = as_warning,
) -> Status:
    """Say whether each dataset and flow runs, what is gone, and how many runs are left.

    Nothing is charged, and nothing is written.

    Args:
        dataset: Only this one. Default: all of the project.
        part: Only this part of the dataset, and what binds all of them.
        tell: Hears what is wrong with numbers that are shown all the same.

    Raises:
        UnknownDataset: If neither the ledger nor a policy knows it.
        LedgerError: If the ledger is missing or out of reach.

    Examples:
        >>> status("orders").datasets[0].standing.accounts
    """
    found = settings()
    with inspected(found, tell=tell) as ledger:
        return status_of(found, ledger, dataset, part)


def status_of(
    found: Settings,
    ledger: Ledger,
    dataset: str | None = None,
    part: str | None = None,
) -> Status:
    """Return the same of an open ledger."""
    if part is not None and dataset is None:
        msg = f"several datasets may have a part {part!r}. Name the dataset, too."
        raise ConfigurationError(msg)
    policies, problem = policies_and_problem(found.policies)
    shown = standings(ledger, policies, dataset, part)
    ahead = outlooks(ledger, dataset)
    refused: Counter[tuple[str, int | None]] = Counter(
        (each.dataset, each.term) for each in views.refusals(ledger)
    )
    return Status(
        ledger=ledger.id,
        place=ledger.place,
        datasets=tuple(
            _status_of(ledger, policies, each, ahead, refused) for each in shown
        ),
        flows=tuple(flow_outlooks(ahead)),
        warnings=(*([problem] if problem else []), *_changes(policies, shown)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetStatus:
    """All that is shown of a dataset in its newest term.

    Attributes:
        outlooks: Further runs of each flow.
        refused: Its refused steps, of the newest thousand of the ledger.
        guarantee: The guarantee with its assumptions.
    """

    standing: Standing
    overview: Overview
    terms: tuple[TermView, ...]
    outlooks: tuple[Outlook, ...]
    refused: int
    guarantee: str

    @property
    def history(self) -> str:
        """The terms in words, if there is more to say than the newest budget."""
        terms = self.terms
        told = len(terms) > 1 or any(view.opened != view.budget for view in terms)
        return terms_in_words(terms) if told else ""

    @property
    def frozen(self) -> str:
        """Who froze the dataset and why, or ""."""
        freeze = self.terms[-1].frozen if self.terms else None
        return "" if freeze is None else frozen_text(freeze)

    @property
    def used(self) -> float | None:
        """The largest share of a budget that is used; None where none is known."""
        shares = (each.fraction for each in self.overview.spent)
        return max((each for each in shares if each is not None), default=None)


def _status_of(
    ledger: Ledger,
    policies: PolicySet,
    standing: Standing,
    ahead: Sequence[Outlook],
    refused: Mapping[tuple[str, int | None], int],
) -> DatasetStatus:
    name, pinned = standing.dataset, standing.pinned
    terms = tuple(views.terms(ledger, name))
    own = tuple(each for each in ahead if each.dataset == name)
    return DatasetStatus(
        standing=standing,
        overview=overview(ledger, standing, own, paused=pauses(policies.get(name))),
        terms=terms,
        outlooks=own,
        refused=refused[name, standing.term],
        guarantee=term_guarantee(pinned, terms),
    )


def _changes(policies: PolicySet, shown: Sequence[Standing]) -> list[str]:
    found = []
    for standing in shown:
        if not standing.differences:
            continue
        place = short_path(policies.source(standing.dataset))
        then = (
            "Nothing was charged yet, so the next step applies the file."
            if standing.replaceable
            else "The ledger's copy governs and steps are refused: undo the edit, or "
            f"see `dpflow policy diff {standing.dataset}`."
        )
        told = "; ".join(standing.differences)
        found.append(f"{place} differs from the ledger: {told}. {then}")
    return found
