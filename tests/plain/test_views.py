"""Views of the ledger in plain tables: the same answers as those of one journal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any

import pytest

from dpflow.exceptions import BudgetRefused, ConfigurationError, DpflowError
from dpflow.ledger import views as old_views
from dpflow.ledger.decision.gates import Gate
from dpflow.plain import views
from dpflow.policy import PolicySet
from tests.plain.histories import (
    LENGTH,
    WEEKS,
    Old,
    People,
    Plain,
    Play,
    in_memory,
    in_postgres,
    in_sqlite,
)

#: Ledger in one of its forms, with the modules of its views.
NAMES = ("accounts", "releases", "spending", "runs")
OLD = (old_views, *(import_module(f"dpflow.ledger.views.{n}") for n in NAMES))
NEW = (views, *(import_module(f"dpflow.plain.views.{n}") for n in NAMES))
#: The windows of dataset w have one row in the new answers.
DATASETS = ("a", "b", "c", "d", "auto", "e", "other-e", "population/p")
RUNS = ("f1", "f2", "g1", "g2", "h1", "h2", "outer", "none")
FACTS = ("step", "flow", "flow_run", "cost", "datasets", "partitions", "release_key")


def chosen(body: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return facts that both ledgers keep."""
    return {name: body[name] for name in names if body.get(name)}


def untimed(found: Any) -> Any:
    """Return facts without their time."""
    if found is None:
        return None
    return {name: value for name, value in found.items() if name != "at"}


def answered(question: Callable[[], Any]) -> Any:
    """Return an answer, or the class of the error."""
    try:
        return question()
    except DpflowError as error:
        return type(error).__name__


def ask_accounts(modules: Any, ledger: Any, policies: PolicySet) -> Iterator[Any]:
    """Ask for accounts, terms, gates and standings."""
    general, accounts, *_ = modules
    yield [v for v in general.accounts(ledger) if v.dataset != "w"]
    for name in DATASETS:
        yield name, general.accounts(ledger, name)
        for view in general.terms(ledger, name):
            fields = {f: getattr(view, f) for f in view.__slots__ if f != "frozen"}
            yield fields, untimed(view.frozen)
        gates: Mapping[str, Gate] = accounts.standing_gates(ledger, name)
        yield {n: (g.used, g.total, g.state, g.size) for n, g in gates.items()}
        found = answered(lambda n=name: accounts.promise(ledger, n)[2])  # type: ignore[misc]
        yield found if isinstance(found, str) else [v.counted for v in found]
    for part in (None, "x", "y", WEEKS[0]):
        for name in ("c", "d", "population/p"):
            yield answered(
                lambda n=name, p=part: accounts.standings(ledger, policies, n, p)  # type: ignore[misc]
            )
    gates = accounts.standing_gates(ledger, "w")
    yield {n: (g.used, g.total, g.state) for n, g in gates.items()}
    yield accounts.known_datasets(ledger, policies)
    yield answered(lambda: accounts.check_dataset(ledger, policies, "nowhere"))
    for each in general.open_reservations(ledger):
        yield each.reservation, each.alive, chosen(each.body, "accounts", *FACTS)


def ask_releases(modules: Any, ledger: Any) -> Iterator[Any]:
    """Ask for releases and refusals."""
    general, _, releases, *_ = modules
    for name in (None, *DATASETS):
        kept = releases.releases(ledger, name)
        for each in sorted(kept, key=lambda release: release.id):
            fields = {f: getattr(each, f) for f in each.__slots__}
            for field in ("at", "row"):
                del fields[field]
            yield name, fields
            value = answered(lambda i=each.id: releases.release_value(ledger, i)[1])  # type: ignore[misc]
            yield value, releases.has_release(ledger, each.row.key)
        yield releases.count_releases(ledger, name)
    yield answered(lambda: releases.release_value(ledger, "k1")[1])
    for name in DATASETS:
        for refusal in general.refusals(ledger, dataset=name):
            names = ("refusal", "gate", "asked", "left", "fits", *FACTS)
            yield refusal.account, chosen(refusal.body, *names)
        halts = general.halts(ledger, name)
        yield sorted((str(f), r.account) for f, r in halts.items())
    for run in RUNS:
        count = general.count_refusals(ledger, run)
        for after in range(count + 1):
            error = general.refusal_of_run(ledger, run, after=after)
            yield run, type(error).__name__, error and without(error.details, "fits")


def without(details: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return details but for some."""
    return {name: value for name, value in details.items() if name not in names}


def ask_history(modules: Any, ledger: Any) -> Iterator[Any]:
    """Ask for the lines of the journal."""
    general, *_ = modules
    for name in (*DATASETS, "w"):
        for kinds in ({}, {"all_accounts": True}, {"decisions": True}):
            for limit in (5, 200):
                # A step over b and the divided c hides b in the older ledger.
                if name == "b" and not kinds:
                    continue
                lines = general.history(ledger, name, limit=limit, **kinds)
                yield name, kinds, [described(line) for line in lines]
    every = general.history(ledger, limit=500, all_accounts=True)
    yield sorted(map(repr, map(described, every)))


def described(line: Any) -> Any:
    """Return what both ledgers say in a line."""
    kind = line.kind
    if line.body.get("outcome") == "void":
        kind = "void"
    amounts = (
        dict(sorted(each.items())) if each else None
        for each in (line.amount, line.settled_after, line.left_after)
    )
    said = chosen(line.body, "step", "flow", "release_key", "reason", "outcome")
    if kind == "void":
        said = {}
    return line.account, kind, line.reservation, *amounts, line.fate, said


def ask_spending(modules: Any, ledger: Any) -> Iterator[Any]:
    """Ask who spent a budget, and what each run did."""
    general, accounts, _, spending, runs = modules
    for name in (*DATASETS, "w"):
        terms = [view.number for view in general.terms(ledger, name)]
        for term in terms:
            for by in ((), ("flow", "step"), ("release", "who")):
                groups, odd = spending.spending(ledger, name, by, term=term)
                yield sorted((g.account, g.group, g.charges, g.amount) for g in groups)
                yield sorted((s.what, s.step, str(s.flow), s.times) for s in odd)
        ids = [*accounts.standing_gates(ledger, name)]
        for account, points in general.usage(ledger, name, ids, most=100).items():
            found = [(p.kind, p.used_fraction, p.release_key) for p in points]
            yield account, [p for p in found if p[0] not in ("settle", "void")]
        all_runs = runs.dataset_runs(ledger, name)
        yield None if all_runs is None else (all_runs.term.number, all_runs.older)
        for run in all_runs.runs if all_runs else ():
            steps = [(s.id, chosen(s.body, *FACTS)) for s in run.steps]
            yield run.flow, run.run, run.keys, run.refused, run.complete, steps
            charges = runs.run_charges(ledger, name, run)
            yield {n: (c.spent, {*c.peaks}) for n, c in sorted(charges.items())}


def play(seed: int, database: Callable[[], Any], **how: Any) -> Play:
    """Play a history on both ledgers."""
    owners = People()
    plain = Plain(owners, database(), **how)
    history = Play(seed, owners, [Old(owners), plain])
    for _ in range(LENGTH):
        history.step()
    return history


def compare(history: Play) -> None:
    """Ask both ledgers everything."""
    policies = PolicySet(history.policies)
    old, new = (ledger.ledger for ledger in history.ledgers)
    for ask in (ask_accounts, ask_releases, ask_history, ask_spending):
        more = (policies,) if ask is ask_accounts else ()
        answers = ask(OLD, old, *more), ask(NEW, new, *more)  # type: ignore[operator]
        for before, after in zip(*answers, strict=True):
            assert before == after, ask.__name__


@pytest.mark.parametrize("seed", range(8))
def test_both_ledgers_are_read_alike(seed: int) -> None:
    """Every view of a random history has the same records."""
    compare(play(seed, in_memory))


@pytest.mark.parametrize("database", [in_sqlite, in_postgres])
def test_both_databases_are_read_alike(database: Callable[[], Any]) -> None:
    """A file and a server give the records of a ledger in memory."""
    compare(play(100, database))
