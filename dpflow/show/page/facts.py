"""What a page shows of a ledger, read in a few short transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

from dpflow.config import Settings
from dpflow.exceptions import LedgerCorrupt
from dpflow.forecast import Outlook, budget_line, flow_outlooks, outlooks
from dpflow.guard.inspection import inspected
from dpflow.ledger import Ledger, views
from dpflow.ledger.decision.refusal import frozen_text
from dpflow.ledger.records import (
    AccountView,
    AlertView,
    OpenReservation,
    RefusalView,
    TermView,
)
from dpflow.ledger.views.releases import KeptRelease, releases
from dpflow.ledger.views.standing import Standing, standings
from dpflow.notebook import Record
from dpflow.policy import Policy, PolicySet
from dpflow.policy.files import policies_and_problem
from dpflow.rounding import number_from_text, number_text, short_up
from dpflow.show.figures.burndown import BurnDown
from dpflow.show.guarantees import term_guarantee, terms_in_words
from dpflow.show.overview import Overview, overview, pauses
from dpflow.show.page.stamp import Stamp

_MOST_REFUSALS, _MOST_RELEASES, _MOST_RESERVATIONS = 200, 30, 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One dataset in one term.

    Attributes:
        overview: Whether it runs, and what is gone.
        headline: The guarantee as people would say it; "" if there is no short way.
        guarantee: The guarantee with its assumptions.
        history: Which terms there were, if that is worth telling.
        frozen: Who froze the dataset and why, or "".
        thresholds: The alerts that the policy asks for, as shares.
        refusals: The newest ones of this term.
        refused: How many there are, of the newest thousand of the ledger.
        outlooks: How many more runs each flow has.
    """

    dataset: str
    term: int | None
    overview: Overview
    unit: str
    relation: str
    headline: str
    guarantee: str
    history: str
    frozen: str
    differences: tuple[str, ...]
    accounts: tuple[AccountView, ...]
    thresholds: tuple[str, ...]
    alerts: tuple[AlertView, ...]
    refusals: tuple[RefusalView, ...]
    refused: int
    outlooks: tuple[Outlook, ...]
    burn_down: BurnDown | None = field(repr=False)

    @property
    def filters(self) -> tuple[AccountView, ...]:
        """The accounts with a budget."""
        return tuple(view for view in self.accounts if view.reading is None)

    @property
    def odometers(self) -> tuple[AccountView, ...]:
        """The accounts with a reading."""
        return tuple(view for view in self.accounts if view.reading is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report(Record):
    """All that a page shows.

    Attributes:
        warnings: What is wrong with the policies or the ledger, in words.
        flows: What limits each flow that charges several datasets.
        reservations: Charges that nobody has settled, oldest first.
        releases: The newest kept outputs, without their values.
        kept: How many there are.
        stamp: What a verification found; None if none was asked for.
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
    found: Settings,
    dataset: str | None = None,
    *,
    stamp: Callable[[Ledger], Stamp] | None = None,
) -> Report:
    """Read what a page shows; the ledger is opened for reading only.

    Args:
        found: Where the project's ledger and policies are.
        dataset: Only this dataset. Default: all.
        stamp: Verifies the ledger; None leaves that out.

    Raises:
        LedgerError: If the ledger is missing, out of reach or not the pinned one.
        UnknownDataset: If neither the ledger nor a policy knows the dataset.
    """
    policies, problem = policies_and_problem(found.policies)
    problems = [] if problem is None else [problem]
    # A verification asks the witness by itself.
    tell = problems.append if stamp is None else None
    with inspected(found, tell=tell) as ledger:
        made = None if stamp is None else stamp(ledger)
        try:
            return collect(
                ledger,
                standings(ledger, policies, dataset),
                policies,
                dataset=dataset,
                problems=problems,
                stamp=made,
            )
        except LedgerCorrupt as error:
            if made is None or made.found.fine:
                raise
            return unread(ledger, [*problems, error.message], made)


def collect(
    ledger: Ledger,
    standings: Iterable[Standing],
    policies: PolicySet,
    *,
    dataset: str | None = None,
    problems: Sequence[str] = (),
    stamp: Stamp | None = None,
) -> Report:
    """Read what a page shows.

    Args:
        ledger: The ledger; other processes may go on using it.
        standings: The datasets, in the order of the page.
        policies: As the files say now, for the alerts that they ask for.
        dataset: The only one whose releases, reservations and newest entries are
            shown. Default: all.
        problems: What is wrong with the files or the ledger, if anything is.
        stamp: What a verification found.
    """
    standings = list(standings)
    known = {view.id for each in standings for view in each.accounts}
    refused: dict[tuple[str, int | None], list[RefusalView]] = {}
    for refusal in views.refusals(ledger):
        refused.setdefault((refusal.dataset, refusal.term), []).append(refusal)
    ahead = outlooks(ledger, dataset)
    sections: list[Section] = []
    for standing in standings:
        policy = policies.get(standing.dataset)
        own = [each for each in ahead if each.dataset == standing.dataset]
        of_term = refused.get((standing.dataset, standing.term), [])
        sections.append(_section(ledger, standing, policy, of_term, own))
    kept = releases(ledger, dataset)
    reservations = [
        each
        for each in views.open_reservations(ledger)
        if dataset is None or known & set(each.accounts)
    ]
    if stamp is not None and dataset is not None:
        heads = {k: head for k, head in stamp.found.heads.items() if k == dataset}
        stamp = replace(stamp, found=replace(stamp.found, heads=heads))
    return Report(
        ledger=ledger.id,
        place=ledger.place,
        at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        warnings=tuple(problems),
        sections=tuple(sections),
        flows=tuple(flow_outlooks(ahead)),
        reservations=tuple(reservations[:_MOST_RESERVATIONS]),
        held=len(reservations),
        releases=tuple(kept[:_MOST_RELEASES]),
        kept=len(kept),
        stamp=stamp,
    )


def unread(ledger: Ledger, problems: Sequence[str], stamp: Stamp) -> Report:
    """Return a page that says why a damaged ledger is not shown.

    Args:
        ledger: The ledger.
        problems: What is wrong with it.
        stamp: What a verification found.
    """
    return Report(
        ledger=ledger.id,
        place=ledger.place,
        at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        warnings=tuple(problems),
        stamp=stamp,
    )


def _section(
    ledger: Ledger,
    standing: Standing,
    policy: Policy | None,
    refused: Sequence[RefusalView],
    ahead: Sequence[Outlook],
) -> Section:
    dataset, pinned = standing.dataset, standing.pinned
    # An earlier term is its numbers only; all else is told of the newest one.
    newest = pinned is not None
    terms = views.terms(ledger, dataset) if newest else []
    freeze = terms[-1].frozen if terms else None
    alerts = () if policy is None else policy.alerts
    shares = [Fraction(alert) for alert in alerts]
    ahead_now = ahead if newest else ()
    found = overview(ledger, standing, ahead_now, paused=pauses(policy))
    told = len(terms) > 1 or any(view.opened != view.budget for view in terms)
    return Section(
        dataset=dataset,
        term=standing.term,
        overview=found,
        unit="" if pinned is None else str(pinned["unit"]),
        relation="" if pinned is None else str(pinned["relation"]),
        headline="" if pinned is None else headline(pinned, terms),
        guarantee="" if pinned is None else term_guarantee(pinned, terms),
        history=terms_in_words(terms) if told else "",
        frozen="" if freeze is None else frozen_text(freeze),
        differences=standing.differences,
        accounts=standing.accounts,
        thresholds=tuple(map(number_text, shares)) if newest else (),
        alerts=tuple(views.alerts(ledger, dataset)) if newest else (),
        refusals=tuple(refused[:_MOST_REFUSALS]) if newest else (),
        refused=len(refused) if newest else 0,
        outlooks=tuple(ahead) if newest else (),
        burn_down=BurnDown.read(ledger, dataset, alerts=shares, line=budget_line(ahead))
        if newest
        else None,
    )


def headline(pinned: Mapping[str, Any], terms: Sequence[TermView]) -> str:
    """Say what the guarantee is, as short as it can truly be said.

    Args:
        pinned: What `Policy.pinned` returned, from the file or from the ledger.
        terms: The dataset's terms, oldest first.

    Returns:
        "" if terms protect different units or relations: there is no short way then.
    """
    promised = {(view.unit, view.relation) for view in terms if view.charged}
    promised.add((pinned["unit"], pinned["relation"]))
    if len(promised) > 1:
        return ""
    unit, cap = pinned["unit"], pinned.get("lifetime")
    if "partition" in pinned:
        by = pinned["partition"]["by"]
        return f"Every {unit}, in each {by}: {_at_most(pinned['budget'])}."
    # A tightened term counts as it was opened.
    term = terms[-1].opened if terms else pinned["budget"]
    alone = "" if cap in (None, term) else f" In this term alone: {_at_most(term)}."
    which = "this term" if cap is None else "all terms"
    return f"Every {unit}, over all reports of {which}: {_at_most(cap or term)}.{alone}"


def _at_most(budget: Mapping[str, str]) -> str:
    epsilon, delta = (
        short_up(number_from_text(budget[name])) for name in ("epsilon", "delta")
    )
    return f"epsilon at most {epsilon}, delta at most {delta}"
