"""Who spent a dataset's budget, what went otherwise, and what was refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dpflow.config import settings
from dpflow.exceptions import require
from dpflow.guard.inspection import Tell, as_warning, inspect_reading
from dpflow.ledger import split_account, views
from dpflow.ledger.decisions.refusals import amounts_text
from dpflow.ledger.views.accounts import check_dataset
from dpflow.ledger.views.entries import kind_title, percent_text
from dpflow.ledger.views.reading import Source
from dpflow.ledger.views.releases import RefusalView
from dpflow.ledger.views.spending import GROUPS, Spending, Unusual, spending
from dpflow.notebook import Sheet, TableRecord
from dpflow.policy.files import readable_policies

#: This many refusals of the ledger are read, the newest.
_MOST_REFUSALS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Why(TableRecord):
    """Why a budget is used: what `dpflow why` prints.

    In a notebook it is a table of who spent it.

    Attributes:
        ledger: Id of the ledger.
        place: Where it is.
        term: The term of its charges; None before the first.
        by: What charges are grouped by.
        spending: The groups, the largest first.
        unusual: Steps that drew their own noise, failed or were forfeited.
        refused: Refusals, those that say the same together, the newest first.
        limit: The most rows of a table.
        details: Whether the table has the amounts of each component, too.
    """

    ledger: str
    place: str
    dataset: str
    term: int | None
    by: tuple[str, ...]
    spending: tuple[Spending, ...]
    unusual: tuple[Unusual, ...]
    refused: tuple[RefusalGroup, ...]
    limit: int | None = field(default=None, repr=False)
    details: bool = field(default=False, repr=False)

    def sheet(self) -> Sheet:
        """Return its table of what spent the budget."""
        heads = ("account", *self.by, "charges", "used", "last", "amount")
        # Most datasets have one account.
        first = int(len({group.account for group in self.spending}) == 1)
        last = None if self.details else -1
        rows = [_cells(group)[first:last] for group in self.spending[: self.limit]]
        return Sheet(heads[first:last], rows, heads[-4:-1])

    def unusual_sheet(self) -> Sheet:
        """Return its table of unusual steps."""
        rows = [
            (step.step, step.flow or "-", step.what, str(step.times), minute(step.last))
            for step in self.unusual[: self.limit]
        ]
        return Sheet(("step", "flow", "what", "times", "last"), rows, ("times", "last"))


def minute(at: str) -> str:
    """Write a moment to the minute."""
    return at[:16].replace("T", " ")


def _cells(group: Spending) -> tuple[str, ...]:
    used = percent_text(group.used_fraction)
    tail = used, minute(group.last), amounts_text(group.amount)
    book, _, kind, name, part = split_account(group.account)
    return (kind_title(kind, book, name, part), *group.group, str(group.charges), *tail)


@dataclass(frozen=True, slots=True)
class RefusalGroup:
    """Refusals by one gate that say the same: the newest of them, and the number."""

    newest: RefusalView
    first: str
    times: int


def why(
    dataset: str,
    *,
    by: Sequence[str] = ("flow", "step"),
    term: int | None = None,
    tell: Tell = as_warning,
) -> Why:
    """Say what spent a budget, which steps were unusual, and what was refused.

    Nothing is charged, and nothing is written.

    Args:
        dataset: Its name.
        by: What charges are grouped by: any of flow, step, week, release, who, cost,
            noise.
        term: Of an earlier term. Default: the newest.
        tell: Hears what is wrong with numbers that are printed all the same.

    Raises:
        UnknownDataset: If neither the ledger nor a policy knows it.
        ConfigurationError: If there is no such group or term.
        LedgerError: If the ledger is missing or out of reach.

    Examples:
        >>> why("orders", by=["week"]).spending[0].used_fraction
    """
    msg = f"by takes any of {', '.join(GROUPS)}, got {', '.join(map(str, by))}"
    require({*by} <= {*GROUPS}, msg)
    setup = settings()
    with inspect_reading(setup, tell=tell) as reading:
        check_dataset(reading, readable_policies(setup.policies), dataset)
        number = _term_asked(reading, dataset, term)
        spent, unusual = spending(reading, dataset, tuple(by), term=number)
        return Why(
            ledger=reading.id,
            place=reading.address,
            dataset=dataset,
            term=number or None,
            by=tuple(by),
            spending=tuple(spent),
            unusual=tuple(unusual),
            refused=tuple(list_refused(reading, dataset, number)),
        )


def _term_asked(source: Source, dataset: str, term: int | None) -> int:
    """Return the number of the term; 0 before the first."""
    numbers = [view.number for view in views.terms(source, dataset)]
    if term is None:
        return max(numbers, default=0)
    listed = ", ".join(map(str, numbers)) or "none yet"
    require(term in numbers, f"{dataset!r} has no term {term}. Its terms: {listed}.")
    return term


def list_refused(source: Source, dataset: str, term: int | None) -> list[RefusalGroup]:
    """Return what gates of a term, or of all, refused, alike ones together."""
    result: dict[tuple[str, str], RefusalGroup] = {}
    refusals = views.refusals(source, dataset=dataset, limit=_MOST_REFUSALS)
    for refusal in (refusal for refusal in refusals if term in (None, refusal.term)):
        alike = (refusal.account, str(refusal.body.get("message")))
        former = result.get(alike, RefusalGroup(refusal, refusal.at, 0))
        result[alike] = RefusalGroup(former.newest, refusal.at, former.times + 1)
    return list(result.values())
