"""Views of the ledger in plain tables: the same answers as those of one journal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from dpflow import EarlyStopping, Laplace, PureDP
from dpflow.exceptions import (
    BudgetExhausted,
    BudgetRefused,
    ConfigurationError,
    DpflowError,
    ReleaseError,
)
from dpflow.ledger import views
from dpflow.ledger import views as old_views
from dpflow.ledger.decisions.gates import Gate
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.opening import create_ledger
from dpflow.ledger.tables.statements import read_statements
from dpflow.ledger.views.accounts import WindowView
from dpflow.ledger.views.entries import account_title
from dpflow.policy import PolicySet
from tests.ledger.support import make_policy
from tests.plain.histories import (
    LENGTH,
    POPULATION,
    WEEKS,
    Old,
    People,
    Plain,
    Play,
    in_memory,
    in_postgres,
    in_sqlite,
)
from tests.plain.support import charged, granted, make, reopen, request
from tests.postgres import server

#: Ledger in one of its forms, with the modules of its views.
NAMES = ("accounts", "releases", "spending", "runs")
OLD = (old_views, *(import_module(f"dpflow.ledger.views.{n}") for n in NAMES))
NEW = (views, *(import_module(f"dpflow.ledger.views.{n}") for n in NAMES))
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
                if name == "population/p":
                    # A withdrawal stands in the journal of the release's dataset.
                    lines = [e for e in lines if limit > 5 and e.kind != "withdraw"]
                yield name, kinds, [described(line) for line in lines]
    every = general.history(ledger, limit=500, all_accounts=True)
    # A withdrawal stands in the journal of the release's dataset.
    stays = [e for e in every if (e.kind, e.account[0]) != ("withdraw", "p")]
    yield sorted(map(repr, map(described, stays)))


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
        for account, points in general.usage(ledger, name, ids, most=500).items():
            found = [(p.kind, p.used_fraction, p.release_key) for p in points]
            yield account, [p for p in found if p[0] not in ("settle", "void")]
        # A void that could not return all is no step any more.
        all_runs = None if name == "auto" else runs.dataset_runs(ledger, name)
        yield None if all_runs is None else (all_runs.term.number, all_runs.older)
        for run in all_runs.runs if all_runs else ():
            charges = runs.run_charges(ledger, name, run)
            steps = [(s.id, chosen(s.body, *FACTS)) for s in run.steps]
            yield run.flow, run.run, run.keys, run.refused, run.complete, steps
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
        answers = ask(OLD, old, *more), ask(NEW, new, *more)
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


# Examples by name


@pytest.fixture(params=["sqlite", "postgres"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    """Give a new ledger of each database."""
    if request.param == "sqlite":
        yield make(tmp_path / "ledger.db")
        return
    place = server().new_database()
    made = create_ledger(place, witness="none")
    yield made
    made.close()
    server().drop(place)


DIVIDED = make_policy(partition="{by: region}", flows="{daily: {epsilon: 0.8}}")
WEEKLY = make_policy(unit="customer-week", partition="{by: week}", window="{length: 2}")
MEMBER = make_policy("m", population="p")


def test_spent_reserved_and_forfeited_are_apart(ledger: Ledger) -> None:
    """By whether a charge was settled, is in progress, or will never be settled."""
    charged(ledger, "0.1")
    live = granted(ledger, "0.2", body={"task_run": "t"})
    dead = granted(ledger, "0.4", owner="0" * 32)
    expected = {"spent": "0.1", "reserved": "0.2", "forfeited": "0.4", "left": "0.3"}

    def amounts() -> dict[str, str]:
        (view,) = views.accounts(ledger)
        return {name: getattr(view, name)["epsilon"] for name in expected}

    assert amounts() == expected
    open_ones = {each.reservation: each for each in views.open_reservations(ledger)}
    assert {live: True, dead: False} == {k: r.alive for k, r in open_ones.items()}
    assert open_ones[live].body["task_run"] == "t"
    ledger.forfeit(dead, reason="closed by an operator")
    assert amounts() == expected


def test_the_newest_window_stands_for_all(ledger: Ledger) -> None:
    """One row adds up: budget is spent, reserved and left of the newest window."""
    for week in range(1, 5):
        charged(
            ledger,
            "0.499",
            policy=WEEKLY,
            partitions=(f"2026-W0{week}",),
            step=f"{week}",
        )
    (view,) = [v for v in views.accounts(ledger) if v.kind == "partition"]
    assert isinstance(view, WindowView)
    assert (view.name, view.full_windows) == ("2026-W04", 3)
    assert view.spent["epsilon"] == "0.998"
    assert view.left is not None
    assert view.left["epsilon"] == "0.002"
    assert account_title(view) == "2 parts up to 2026-W04 (3 windows full)"
    standing = NEW[1].standings(ledger, PolicySet({}), "a", "2026-W02")[0]
    assert [v.name for v in standing.accounts if v.id] == ["2026-W02"]
    # A part that more was charged to than fits has a row of its own.
    odd = charged(ledger, "0.001", policy=WEEKLY, partitions=("2026-W01",))
    ledger.amend(odd, PureDP(epsilon=5), reason="it cost more")
    names = {v.name: v.state for v in views.accounts(ledger) if v.kind == "partition"}
    assert names == {"2026-W01": "overdrawn", "2026-W04": "open"}


def test_a_part_has_the_account_that_it_has_among_all(ledger: Ledger) -> None:
    """With accounts of no part, and overdrawn ones; an uncharged part has none."""
    name = ""
    for region in ("east", "west"):
        name = charged(
            ledger, policy=DIVIDED, partitions=(region,), flow="daily", step=region
        )

    def states(part: str) -> dict[str, str]:
        (standing,) = NEW[1].standings(ledger, PolicySet({}), "a", part)
        return {view.id: view.state for view in standing.accounts if view.id}

    assert "a#1/partition/west" not in states("east")
    with pytest.raises(ConfigurationError, match="Its whole budget remains"):
        states("center")
    assert not views.terms(ledger, "a")[-1].overdrawn
    ledger.amend(name, PureDP(epsilon=5), reason="it cost more")
    assert states("east")["a#1/partition/west"] == "overdrawn"
    assert views.terms(ledger, "a")[-1].overdrawn


def test_a_population_caps_its_members(ledger: Ledger) -> None:
    """Its account and gates are read with a member; its releases are the member's."""
    charged(ledger, policy=MEMBER, populations=(POPULATION,), key="k")
    assert [v.id for v in views.accounts(ledger)] == ["m#1", "population/p#1"]
    assert [*NEW[1].standing_gates(ledger, "m")] == ["m#1", "population/p#1"]
    assert [r.dataset for r in NEW[2].releases(ledger)] == ["m"]
    assert NEW[2].count_releases(ledger, "population/p") == 1
    assert {line.account for line in views.history(ledger)} == {
        "m#1",
        "population/p#1",
    }
    kinds = [line.kind for line in views.history(ledger, "population/p")]
    assert kinds == ["settle", "reserve", "open"]


def test_what_people_decided_has_one_line_each(ledger: Ledger) -> None:
    """A freeze, a charge by hand and a new term, with reasons and sums."""
    name = charged(ledger, "0.1", policy=MEMBER, populations=(POPULATION,))
    ledger.amend(name, PureDP(epsilon="0.3"), reason="clipped too late")
    charged(ledger, "0.1", policy=MEMBER, populations=(POPULATION,))
    ledger.freeze("m", reason="audit")
    ledger.freeze("m", reason="done", unfreeze=True)
    lines = views.history(ledger, decisions=True)
    found = [(line.kind, line.account, line.body.get("reason")) for line in lines]
    assert found[:3] == [
        ("unfreeze", "m#1", "done"),
        ("freeze", "m#1", "audit"),
        ("adjust", "m#1", "clipped too late"),
    ]
    assert {line.kind for line in lines[3:]} == {"open"}
    assert lines[2].settled_after["epsilon"] == "0.3"
    assert lines[2].amount["epsilon"] == "0.2"


def test_accounts_that_were_charged_last_are_known(ledger: Ledger) -> None:
    """By the numbers of their newest entries, of one dataset."""
    for region in ("east", "west", "east"):
        charged(ledger, "0.1", policy=DIVIDED, partitions=(region,), flow="daily")
    newest = NEW[3].find_newest_entries(ledger, "a")
    assert newest["a#1/partition/east"] > newest["a#1/partition/west"]


def test_alerts_name_the_threshold_and_its_time(ledger: Ledger) -> None:
    """Those of settled amounts, each once, the newest first."""
    policy = make_policy(alerts="[0.5, 0.8]")
    charged(ledger, "0.6", policy=policy)
    open_one = granted(ledger, "0.3", policy=policy)
    assert [each.threshold for each in views.alerts(ledger, "a")] == ["0.5"]
    ledger.settle(open_one)
    raised = views.alerts(ledger, "a")
    assert [(each.account, each.threshold) for each in raised] == [
        ("a#1", "0.8"),
        ("a#1", "0.5"),
    ]
    assert raised[0].at >= raised[1].at


def test_a_refusal_is_found_by_every_run_around_it(ledger: Ledger) -> None:
    """As the same error; an exhausted budget, which ends the flow, comes first."""
    runs = ("in%ner", "outer")
    granted(ledger, "0.6", flow="f", flow_run="outer")
    asked = request(
        ledger, "5", flow="f", flow_run="outer", enclosing_runs=runs, step="typo"
    )
    with pytest.raises(BudgetRefused) as caught:
        ledger.reserve(asked)
    for run in runs:
        refusal = views.refusal_of_run(ledger, run)
        assert refusal is not None
        assert {**caught.value.details, "flow_run": run} == refusal.details
    assert views.refusal_of_run(ledger, "another") is None
    assert views.halts(ledger, "a") == {}
    with pytest.raises(BudgetExhausted):
        granted(ledger, "0.6", flow="f", flow_run="outer")
    assert isinstance(views.refusal_of_run(ledger, "outer"), BudgetExhausted)
    assert views.refusal_of_run(ledger, "outer", after=2) is None
    assert views.halts(ledger, "a")["f"].account == "a#1"
    granted(ledger, "0.1", flow="f")
    assert views.halts(ledger, "a") == {}


def test_a_clock_that_jumps_hides_no_entry(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest of a dataset come first, whatever their labels say."""
    author, made = ledger.author(), []

    def at(text: str) -> None:
        monkeypatch.setattr(ledger, "author", lambda: author._replace(at=text))

    for time in ("2999-01-01", "1970-01-01", "2026-01-01"):
        at(time)
        made.append(granted(ledger))
    for dataset in (None, "a"):
        lines = views.history(ledger, dataset)
        assert [line.reservation for line in lines] == [*made[::-1], None]
    for time, cost in (("2026-01-01", "5"), ("1900-01-01", "6")):
        at(time)
        with pytest.raises(BudgetRefused):
            granted(ledger, cost)
    found = [each.body["asked"]["epsilon"] for each in views.refusals(ledger)]
    assert found == ["6", "5"]


def test_withdrawn_and_claimed_releases_are_told_apart(ledger: Ledger) -> None:
    """A value is read by key or id; a withdrawn one never, its row stays."""
    for key in ("one", "two"):
        ledger.settle(
            granted(ledger, "0.01", key=key), value='"x"', body={"who": "ann"}
        )
    granted(ledger, "0.01", key="three")
    one, value = NEW[2].release_value(ledger, "one")
    assert (one.key, value) == ("one", '"x"')
    assert NEW[2].release_value(ledger, one.id[:8])[0] == one
    ledger.withdraw(one.row.key, digest=one.digest, reason="wrong")
    states = {each.key: each.state for each in NEW[2].releases(ledger)}
    assert states == {"one": "withdrawn", "two": "settled", "three": "claimed"}
    with pytest.raises(ReleaseError, match="withdrawn"):
        NEW[2].release_value(ledger, "one")
    assert len(NEW[2].releases(ledger, most=2)) == 2


def test_the_promise_of_an_entry_is_that_of_then(ledger: Ledger) -> None:
    """Terms and tightenings that came later are not in it."""
    first = make_policy(lifetime="{epsilon: 3}")
    with pytest.raises(ConfigurationError, match="no release"):
        NEW[1].promise(ledger, "a")
    charged(ledger, policy=first)
    (number, digest), terms, shown, day = NEW[1].promise(ledger, "a")
    assert (number, len(terms), shown[-1].budget["epsilon"]) == (3, 1, "1")
    tight = make_policy(lifetime="{epsilon: 3}", budget="{epsilon: 0.5}")
    ledger.apply(tight, reason="less")
    ledger.apply(first, reason="more", new_term=True)
    assert NEW[1].promise(ledger, "a", 3) == ((3, digest), terms, shown, day)
    now = NEW[1].promise(ledger, "a")[2]
    assert [(v.budget["epsilon"], v.charged) for v in now] == [
        ("0.5", True),
        ("1", False),
    ]


def test_a_run_that_met_a_refusal_is_not_complete(ledger: Ledger) -> None:
    """Its worst case on the way, and what it left behind, are apart."""
    cost = EarlyStopping(Laplace(sensitivity=1, epsilon="0.05"), stops=(2, 4))
    name = granted(ledger, cost, flow="f", flow_run="r1", key="2026-W01")
    ledger.settle(name, value="1", reported=2)
    charged(ledger, "0.1", flow="f", flow_run="r1")
    with pytest.raises(BudgetRefused):
        granted(ledger, "5", flow="f", flow_run="r2", enclosing_runs=("r2",))
    charged(ledger, "0.1", flow="f", flow_run="r2")
    runs = NEW[4].dataset_runs(ledger, "a")
    assert runs is not None
    found = [(run.run, run.complete, run.keys) for run in runs.of_flow("f")]
    assert found == [("r1", True, ["2026-W01"]), ("r2", False, [])]
    charge = NEW[4].run_charges(ledger, "a", runs.runs[0])["a#1"]
    named = charge.gate.rule.named
    assert named(charge.spent)["epsilon"] == "0.2"
    assert [named(peak)["epsilon"] for peak in charge.peaks] == ["0.2"]
    assert NEW[4].dataset_runs(ledger, "a", most=2).older


def test_an_answer_is_of_one_moment(tmp_path: Path) -> None:
    """A charge between two questions changes no answer of an open reading."""
    ledger, other = make(tmp_path / "ledger.db"), reopen(tmp_path / "ledger.db")
    charged(ledger, "0.1", key="k")
    with views.open_reading(ledger) as reading:
        before = views.accounts(reading)
        charged(other, "0.3")
        assert len(views.history(reading)) == 3
        assert views.accounts(reading) == before
        gates = NEW[1].standing_gates(reading, "a")
        assert gates["a#1"].rule.named(gates["a#1"].used)["epsilon"] == "0.1"
        # The secret is read in the same snapshot.
        assert NEW[2].release_values(reading, NEW[2].releases(reading)) == {}
    assert views.accounts(ledger) != before


def test_a_status_asks_a_few_questions(tmp_path: Path) -> None:
    """Their number is that of one snapshot, however much was charged."""
    ledger = make(tmp_path / "ledger.db")
    fields = {"policy": MEMBER, "populations": (POPULATION,)}

    def count() -> int:
        with views.open_reading(ledger) as reading:
            asked, run = list[Any](), reading.transaction.run

            def note(questions: Any) -> list[list[Any]]:
                asked.extend(questions)
                return run(questions)

            reading.transaction.run = note  # type: ignore[method-assign]
            for standing in NEW[1].standings(reading, PolicySet({})):
                name = standing.dataset
                runs = NEW[4].dataset_runs(reading, name)
                for each in runs.runs[-5:]:
                    NEW[4].run_charges(reading, name, each)
                views.halts(reading, name)
                views.terms(reading, name)
                views.accounts(reading, name)
            views.refusals(reading)
        return len(asked)

    charged(ledger, "0.01", flow="f", flow_run="r", **fields)
    with pytest.raises(BudgetRefused):
        granted(ledger, "9", flow="f", flow_run="r", enclosing_runs=("r",), **fields)
    before = count()
    for number in range(5):
        charged(ledger, "0.01", flow="f", flow_run=f"r{number}", **fields)
    assert count() == before <= 12


def test_no_two_files_name_a_statement_alike() -> None:
    """The later one would take the place of the earlier one."""
    names = [
        name
        for file in ("schema", "statements", "audit", "views")
        for name in read_statements(file)
    ]
    assert len(names) == len({*names})
