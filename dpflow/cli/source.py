"""Where the commands get what they show: ledger, pinned copies, policies.

The ledger's pinned copy of a policy governs, so it is shown wherever there is one; the
files only speak for datasets that the ledger does not know yet. Reading a ledger
needs no policy file, so that a broken one hides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpflow.accounting.rules.rule import Filter, Odometer
from dpflow.cli.output import warn
from dpflow.config import Settings, settings
from dpflow.exceptions import (
    DpflowError,
    LedgerCorrupt,
    PolicyError,
    UnknownDataset,
)
from dpflow.guard.project import project_ledger as open_project
from dpflow.ledger import Ledger
from dpflow.ledger import views as ledger_views
from dpflow.ledger.damage import UNREADABLE
from dpflow.ledger.decision.gates import Gate, announced_gates
from dpflow.ledger.records import AccountView
from dpflow.ledger.rows import Term
from dpflow.ledger.views.terms import book_state, differences, is_replaceable
from dpflow.policy import Policy, PolicySet, load_policies
from dpflow.policy.types import did_you_mean
from dpflow.rounding import number_text
from dpflow.show.overview import ENDED

#: State of an account that the first step of its flow will open.
NOT_OPENED = "not opened"


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a dataset stands in one term.

    Attributes:
        term: None if the ledger does not know the dataset yet.
        pinned: The policy's guarantee-relevant fields; the ledger's copy if there is
            one. None for an earlier term, whose copy is history.
        accounts: Opened ones and those that the policy announces.
        differences: How the policy file differs from the ledger's copy.
        replaceable: Whether the next step applies a file that differs by itself.
    """

    dataset: str
    term: int | None
    pinned: Mapping[str, Any] | None
    accounts: tuple[AccountView, ...]
    differences: tuple[str, ...] = ()
    replaceable: bool = True

    @property
    def untouched(self) -> bool:
        """Whether nothing was ever charged here."""
        return all(is_untouched(view) for view in self.accounts)


@contextmanager
def project_ledger(
    *, quiet: bool = False, writes: bool = False
) -> Iterator[tuple[Settings, Ledger]]:
    """Open the project's ledger for one command, which only shows it.

    Args:
        writes: The command writes.
        quiet: Leave a ledger that forgot charges to the command; else it is warned of.

    Raises:
        LedgerError: If it is missing, out of reach or not the pinned one.
        ConfigurationError: If the settings cannot be read.
    """
    found = settings()
    ledger = open_project(found, read_only=not writes)
    try:
        if not quiet:
            _warn_of_rollback(ledger)
        with damage_told(ledger):
            yield found, ledger
    finally:
        ledger.close()


@contextmanager
def damage_told(ledger: Ledger) -> Iterator[None]:
    """Tell what is wrong with a ledger, where a command cannot make sense of it.

    Raises:
        LedgerCorrupt: If a command fails and the ledger does not verify either.
    """
    try:
        yield
    except UNREADABLE as error:
        if isinstance(error, DpflowError):
            raise
        # Only where something is wrong.
        from dpflow.ledger.audit.verify import first_problem  # noqa: PLC0415

        problem = first_problem(ledger)
        if problem is None:
            raise
        msg = (
            f"the ledger {ledger.place} is damaged: {problem}. `dpflow ledger verify` "
            "shows all of it; let no step run before a good backup is back: `dpflow "
            "ledger restore`."
        )
        raise LedgerCorrupt(msg, ledger=ledger.place) from error


def _warn_of_rollback(ledger: Ledger) -> None:
    """Warn that the numbers shown are too small, because the ledger forgot charges."""
    problem = ledger.watch.problem(ledger.storage)
    if problem is not None:
        warn(problem)


def ledger_facts(ledger: Ledger) -> dict[str, str]:
    """Return which ledger this is, for JSON."""
    return {"id": ledger.id, "place": ledger.place}


def policies_and_problem(directory: Path) -> tuple[PolicySet, str | None]:
    """Read the policies; say what is wrong with them instead of failing."""
    if not directory.is_dir():
        return PolicySet({}, {}, directory), None
    try:
        return load_policies(directory), None
    except PolicyError as error:
        hint = "`dpflow policy check` lists every problem."
        return PolicySet({}, {}, directory), f"{error.message} {hint}"


def standings(
    ledger: Ledger, policies: PolicySet, dataset: str | None = None
) -> list[Standing]:
    """Return where each dataset stands, or one of them.

    Raises:
        UnknownDataset: If neither the ledger nor a policy knows the dataset.
    """
    opened: dict[str, list[AccountView]] = {}
    for view in ledger_views.accounts(ledger, dataset):
        opened.setdefault(view.dataset, []).append(view)
    wanted = sorted(opened.keys() | policies.keys()) if dataset is None else [dataset]
    found: list[Standing] = []
    for name in wanted:
        policy = policies.get(name)
        state = book_state(ledger, name)
        known = state.terms(name)
        term = known[-1] if known else None
        pins = {each.number: each.facts["pinned"] for each in known}
        views = [v for v in opened.get(name, []) if not _is_switch(v, pins)]
        if term is not None:
            fields, number = term.facts["pinned"], term.number
        elif policy is not None:
            fields, number = policy.pinned(), None
        else:
            raise unknown_dataset(name, known_datasets(ledger, policies))
        found += _earlier_terms(views, number)
        current = [view for view in views if view.term == number]
        accounts = tuple(sorted([*current, *_announced(fields, current)], key=_order))
        found.append(
            Standing(
                dataset=name,
                term=number,
                pinned=fields,
                accounts=accounts,
                differences=_differences(term, policy),
                replaceable=is_replaceable(state, name)
                and not (policy and policy.officers),
            )
        )
    return found


def _differences(term: Term | None, policy: Policy | None) -> tuple[str, ...]:
    if term is None or policy is None:
        return ()
    return tuple(differences(term, policy))


def _is_switch(view: AccountView, pins: Mapping[int, Mapping[str, Any]]) -> bool:
    """Say whether an account has no budget: it opens and freezes a divided dataset."""
    pinned = pins.get(view.term, {})
    divided = "partition" in pinned and "whole" not in pinned
    return view.kind == "dataset" and divided and is_untouched(view)


def known_datasets(ledger: Ledger, policies: PolicySet) -> set[str]:
    """Return the datasets that the ledger or a policy knows."""
    return {view.dataset for view in ledger_views.accounts(ledger)} | set(policies)


def unknown_dataset(dataset: str, known: set[str]) -> UnknownDataset:
    """Make the error for a dataset that nobody knows."""
    hint = did_you_mean(dataset, known)
    message = f"neither the ledger nor a policy knows the dataset {dataset!r}. {hint}"
    return UnknownDataset(message, dataset=dataset, known=sorted(known), hint=hint)


def view_of(gate: Gate, *, state: str) -> AccountView:
    """Return how the account of a gate reads that was not charged."""
    rule, zero = gate.rule, gate.rule.zero()
    limit = rule.limit if isinstance(rule, Filter) else None
    box = None if limit is None else rule.named(limit)
    return AccountView(
        id=gate.id,
        dataset=gate.dataset,
        term=0,
        kind=gate.kind,
        name=gate.name,
        theorem=rule.theorem,
        state=state,
        parameters=rule.parameters(),
        epsilon=number_text(rule.epsilon) if isinstance(rule, Filter) else None,
        delta=number_text(rule.delta) if isinstance(rule, Filter | Odometer) else "0",
        budget=box,
        spent=rule.named(zero),
        reserved=rule.named(zero),
        forfeited=rule.named(zero),
        left=box,
        used_fraction=gate.used_share(zero),
        reading=rule.read(zero) if isinstance(rule, Odometer) else None,
        halt_at=None if gate.halt is None else number_text(gate.halt),
        charged=False,
    )


def is_untouched(view: AccountView) -> bool:
    """Say whether nothing was charged to an account."""
    charged = (view.spent, view.reserved, view.forfeited)
    return all(text == "0" for amounts in charged for text in amounts.values())


def _announced(
    pinned: Mapping[str, Any], opened: list[AccountView]
) -> Iterator[AccountView]:
    """Yield the accounts that a policy announces and no step has opened yet."""
    known = {(view.kind, view.name) for view in opened}
    for gate in announced_gates(pinned):
        if (gate.kind, gate.name) not in known:
            yield view_of(gate, state=NOT_OPENED)


def _earlier_terms(views: list[AccountView], term: int | None) -> Iterator[Standing]:
    """Yield the terms before this one in which anything was charged."""
    for number in sorted({view.term for view in views} - {term}):
        accounts = tuple(
            replace(view, state=ENDED if view.state == "open" else view.state)
            for view in views
            if view.term == number
        )
        standing = Standing(
            dataset=views[0].dataset, term=number, pinned=None, accounts=accounts
        )
        if not standing.untouched:
            yield standing


def _order(view: AccountView) -> tuple[int, str, str]:
    kinds = ("dataset", "flow", "partition", "population", "odometer")
    place = kinds.index(view.kind) if view.kind in kinds else len(kinds)
    return place, view.name, view.id
