"""What people read: spent, reserved and forfeited apart, the journal, refusals."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from dpflow import EarlyStopping, Gaussian, Laplace, PureDP
from dpflow.exceptions import (
    BudgetExhausted,
    BudgetRefused,
    ConfigurationError,
    ReleaseError,
)
from dpflow.ledger import Ledger, open_ledger, views
from dpflow.ledger.tables.statements import read_statements
from dpflow.ledger.views.accounts import (
    AccountView,
    WindowView,
    standing_gates,
    standings,
)
from dpflow.ledger.views.entries import account_title
from dpflow.ledger.views.releases import (
    count_releases,
    release_value,
    release_values,
    releases,
    withdraw_release,
)
from dpflow.ledger.views.runs import dataset_runs, run_charges
from dpflow.ledger.views.spending import find_newest_entries, spending
from dpflow.ledger.views.terms import promise
from dpflow.policy import PolicySet
from tests.ledger.processes import await_death, killed
from tests.ledger.support import (
    BASIC,
    POPULATION,
    charged,
    granted,
    make_policy,
    request,
    url,
)

pytestmark = pytest.mark.storages("sqlite", "postgres")

FLOWS = make_policy(
    budget="{epsilon: 3, delta: 1e-6}",
    filter="gdp",
    odometer="{theorem: rdp, delta: 1e-6}",
    flows="{weekly: {epsilon: 2, delta: 1e-7, halt_at_epsilon: 3}}",
    other_flows="allow",
)
NOISY = Gaussian(sensitivity=1, sigma=20)
DIVIDED = make_policy(partition="{by: region}", flows="{daily: {epsilon: 0.8}}")
WEEKLY = make_policy(unit="customer-week", partition="{by: week}", window="{length: 2}")
MEMBER = make_policy("m", population="p")


def only(ledger: Ledger) -> AccountView:
    """Return the view of the only account."""
    (view,) = views.accounts(ledger)
    return view


def amounts(view: AccountView) -> dict[str, str]:
    """Return a view's epsilons by what became of them."""
    assert view.left is not None
    return {
        "spent": view.spent["epsilon"],
        "reserved": view.reserved["epsilon"],
        "forfeited": view.forfeited["epsilon"],
        "left": view.left["epsilon"],
    }


def test_spent_reserved_and_forfeited_are_apart(ledger, path):
    """By whether a charge was settled, is in progress, or will never be settled."""
    ledger.settle(granted(ledger, "0.1"))
    live = granted(ledger, "0.2", body={"task_run": "t"})
    dead = killed(path, "0.4")
    expected = {"spent": "0.1", "reserved": "0.2", "forfeited": "0.4", "left": "0.3"}
    assert expected == amounts(only(ledger))
    by_id = {each.reservation: each for each in views.open_reservations(ledger)}
    assert {live: True, dead: False} == {k: each.alive for k, each in by_id.items()}
    assert by_id[live].body["task_run"] == "t"
    ledger.forfeit(dead, reason="closed by an operator")
    assert expected == amounts(only(ledger))
    with pytest.raises(BudgetRefused):
        granted(ledger, "0.31")
    # Another object of the process counts its work as such; a closed one is dead.
    with closing(open_ledger(url(path))) as other:
        assert expected == amounts(only(other))
        ledger.close()
        # A server releases the lock of a closed session when it hears of its end.
        await_death(other, live)
        full = {"spent": "0.1", "reserved": "0", "forfeited": "0.6", "left": "0.3"}
        assert full == amounts(only(other))
        assert only(other).used_fraction == pytest.approx(0.7)


def test_history_is_the_journal_newest_first(ledger):
    """With amounts in the theorem's own words."""
    first = granted(ledger, "0.1", body={"task_run": "t1"})
    ledger.settle(first, body={"noise": "opendp"})
    ledger.void(granted(ledger, "0.2"), reason="cancelled")
    with pytest.raises(BudgetRefused):
        granted(ledger, "0.95")
    entries = views.history(ledger)
    expected = ["refuse", "void", "reserve", "settle", "reserve", "open"]
    assert expected == [entry.kind for entry in entries]
    assert [entry.seq for entry in entries] == [6, 5, 4, 3, 2, 1]
    settle = entries[3]
    assert settle.reservation == first
    assert settle.amount == settle.settled_after == {"epsilon": "0.1", "delta": "0"}
    assert settle.left_after == {"epsilon": "0.9", "delta": "0"}
    facts = ("task_run", "noise", "outcome", "step")
    told_facts = [settle.body[name] for name in facts]
    assert told_facts == ["t1", "opendp", "completed", "count"]
    assert entries[1].body["reason"] == "cancelled"
    assert len(views.history(ledger, limit=2)) == 2


def test_history_by_dataset_and_account(ledger):
    """A charge posts to several accounts; by default only the dataset's are shown."""
    granted(ledger, NOISY, policies=[FLOWS], flow="weekly")
    granted(ledger, policies=[make_policy("b")])
    kinds = [(e.account, e.kind) for e in views.history(ledger, "a")]
    assert kinds == [("a#1", "reserve"), ("a#1", "open")]
    every = {e.account for e in views.history(ledger, all_accounts=True)}
    assert every == {"a#1", "a#1/flow/weekly", "a#1/odometer/weekly", "b#1"}
    assert [v.id for v in views.accounts(ledger, "b")] == ["b#1"]
    assert views.accounts(ledger, "c") == []


def test_usage_is_a_curve_from_oldest_to_newest(ledger):
    """After each entry of the newest term's dataset account."""
    ledger.settle(granted(ledger, "0.25", key="week/1"), value="1")
    ledger.void(granted(ledger, "0.5", step="other"), reason="cancelled")
    points = views.usage(ledger, "a", ["a#1"], most=9)["a#1"]
    curve = [(p.kind, p.used_fraction, p.release_key) for p in points]
    assert curve == [
        ("reserve", 0.25, "week/1"),
        ("settle", 0.25, "week/1"),
        ("reserve", 0.75, None),
        ("void", 0.25, None),
    ]


def test_the_number_of_releases_is_that_of_their_list(ledger):
    """Those that are claimed, stored or withdrawn, but no key that was let go."""
    b = make_policy("b")
    ledger.settle(granted(ledger, "0.01", key="stored"), value="1")
    granted(ledger, "0.01", key="claimed")
    ledger.settle(granted(ledger, "0.01", policies=[b], key="gone"), value="2")
    withdraw_release(ledger, "gone", reason="x")
    for _ in range(2):
        ledger.void(granted(ledger, "0.01", policies=[b], key="free"), reason="x")
    ledger.settle(granted(ledger, "0.01", policies=[BASIC, b], key="both"), value="3")
    for dataset, keys in (
        (None, ["both", "gone", "claimed", "stored"]),
        ("a", ["both", "claimed", "stored"]),
        ("b", ["both", "gone"]),
        ("c", []),
    ):
        assert {each.key for each in releases(ledger, dataset)} == {*keys}
        assert count_releases(ledger, dataset) == len(keys)
        # Few are read of the newest.
        assert [each.key for each in releases(ledger, dataset, 1)] == keys[:1]


def unusual(ledger: Ledger) -> dict[str, int]:
    """Return how many steps of a term went each unusual way."""
    steps = spending(ledger, "a", (), term=1)[1]
    return {each.what: each.times for each in steps}


def test_steps_that_went_otherwise_are_counted(ledger, path):
    """Steps with their own noise, failed ones, and ones without a settlement."""
    for noise in ("opendp", "own", "self-declared"):
        ledger.settle(granted(ledger, "0.1"), body={"noise": noise})
    ledger.settle(granted(ledger, "0.1"), outcome="failed")
    ledger.void(granted(ledger, "0.1"), reason="not started")
    granted(ledger, "0.1")  # it runs
    dead = killed(path, "0.1")
    expected = {"own noise": 2, "failed: error": 1, "forfeited": 1}
    assert unusual(ledger) == expected
    ledger.forfeit(dead, reason="closed by an operator")
    assert unusual(ledger) == expected


def test_the_newest_window_stands_for_all(ledger):
    """One row adds up: budget is spent, reserved and left of the newest window."""
    for week in range(1, 5):
        charged(
            ledger,
            "0.499",
            policies=[WEEKLY],
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
    standing = standings(ledger, PolicySet({}), "a", "2026-W02")[0]
    assert [v.name for v in standing.accounts if v.id] == ["2026-W02"]
    # A part that more was charged to than fits has a row of its own.
    odd = charged(ledger, "0.001", policies=[WEEKLY], partitions=("2026-W01",))
    ledger.amend(odd, PureDP(epsilon=5), reason="it cost more")
    names = {v.name: v.state for v in views.accounts(ledger) if v.kind == "partition"}
    assert names == {"2026-W01": "overdrawn", "2026-W04": "open"}


def test_a_part_has_the_account_that_it_has_among_all(ledger):
    """With accounts of no part, and overdrawn ones; an uncharged part has none."""
    name = ""
    for region in ("east", "west"):
        name = charged(
            ledger, policies=[DIVIDED], partitions=(region,), flow="daily", step=region
        )

    def states(part: str) -> dict[str, str]:
        (standing,) = standings(ledger, PolicySet({}), "a", part)
        return {view.id: view.state for view in standing.accounts if view.id}

    assert "a#1/partition/west" not in states("east")
    with pytest.raises(ConfigurationError, match="Its whole budget remains"):
        states("center")
    assert not views.terms(ledger, "a")[-1].overdrawn
    ledger.amend(name, PureDP(epsilon=5), reason="it cost more")
    assert states("east")["a#1/partition/west"] == "overdrawn"
    assert views.terms(ledger, "a")[-1].overdrawn


def test_a_population_caps_its_members(ledger):
    """Its account and gates are read with a member; its releases are the member's."""
    charged(ledger, policies=[MEMBER], populations=(POPULATION,), key="k")
    assert [v.id for v in views.accounts(ledger)] == ["m#1", "population/p#1"]
    assert [*standing_gates(ledger, "m")] == ["m#1", "population/p#1"]
    assert [r.dataset for r in releases(ledger)] == ["m"]
    assert count_releases(ledger, "population/p") == 1
    assert {line.account for line in views.history(ledger)} == {"m#1", "population/p#1"}
    kinds = [line.kind for line in views.history(ledger, "population/p")]
    assert kinds == ["settle", "reserve", "open"]


def test_what_people_decided_has_one_line_each(ledger):
    """A freeze, a charge by hand and a new term, with reasons and sums."""
    name = charged(ledger, "0.1", policies=[MEMBER], populations=(POPULATION,))
    ledger.amend(name, PureDP(epsilon="0.3"), reason="clipped too late")
    charged(ledger, "0.1", policies=[MEMBER], populations=(POPULATION,))
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


def test_accounts_that_were_charged_last_are_known(ledger):
    """By the numbers of their newest entries, of one dataset."""
    for region in ("east", "west", "east"):
        charged(ledger, "0.1", policies=[DIVIDED], partitions=(region,), flow="daily")
    newest = find_newest_entries(ledger, "a")
    assert newest["a#1/partition/east"] > newest["a#1/partition/west"]


def test_a_refusal_is_found_by_every_run_around_it(ledger):
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


@pytest.mark.promise("clock")
def test_a_clock_that_jumps_hides_no_entry(ledger, monkeypatch):
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


def test_withdrawn_and_claimed_releases_are_told_apart(ledger):
    """A value is read by key or id; a withdrawn one never, its row stays."""
    for key in ("one", "two"):
        ledger.settle(
            granted(ledger, "0.01", key=key), value='"x"', body={"who": "ann"}
        )
    granted(ledger, "0.01", key="three")
    one, value = release_value(ledger, "one")
    assert (one.key, value) == ("one", '"x"')
    assert release_value(ledger, one.id[:8])[0] == one
    ledger.withdraw(one.row.key, digest=one.digest, reason="wrong")
    states = {each.key: each.state for each in releases(ledger)}
    assert states == {"one": "withdrawn", "two": "settled", "three": "claimed"}
    with pytest.raises(ReleaseError, match="withdrawn"):
        release_value(ledger, "one")
    assert len(releases(ledger, most=2)) == 2


def test_the_promise_of_an_entry_is_that_of_then(ledger):
    """Terms and tightenings that came later are not in it."""
    first = make_policy(lifetime="{epsilon: 3}")
    with pytest.raises(ConfigurationError, match="no release"):
        promise(ledger, "a")
    charged(ledger, policies=[first])
    (number, digest), terms, shown, day = promise(ledger, "a")
    assert (number, len(terms), shown[-1].budget["epsilon"]) == (3, 1, "1")
    tight = make_policy(lifetime="{epsilon: 3}", budget="{epsilon: 0.5}")
    ledger.apply(tight, reason="less")
    ledger.apply(first, reason="more", new_term=True)
    assert promise(ledger, "a", 3) == ((3, digest), terms, shown, day)
    now = promise(ledger, "a")[2]
    assert [(v.budget["epsilon"], v.charged) for v in now] == [
        ("0.5", True),
        ("1", False),
    ]


def test_a_run_that_met_a_refusal_is_not_complete(ledger):
    """Its worst case on the way, and what it left behind, are apart."""
    cost = EarlyStopping(Laplace(sensitivity=1, epsilon="0.05"), stops=(2, 4))
    name = granted(ledger, cost, flow="f", flow_run="r1", key="2026-W01")
    ledger.settle(name, value="1", reported=2)
    charged(ledger, "0.1", flow="f", flow_run="r1")
    with pytest.raises(BudgetRefused):
        granted(ledger, "5", flow="f", flow_run="r2", enclosing_runs=("r2",))
    charged(ledger, "0.1", flow="f", flow_run="r2")
    runs = dataset_runs(ledger, "a")
    assert runs is not None
    found = [(run.run, run.complete, run.keys) for run in runs.of_flow("f")]
    assert found == [("r1", True, ["2026-W01"]), ("r2", False, [])]
    charge = run_charges(ledger, "a", runs.runs[0])["a#1"]
    named = charge.gate.rule.label
    assert named(charge.spent)["epsilon"] == "0.2"
    assert [named(peak)["epsilon"] for peak in charge.peaks] == ["0.2"]
    assert dataset_runs(ledger, "a", most=2).older


def test_an_answer_is_of_one_moment(ledger, path):
    """A charge between two questions changes no answer of an open reading."""
    other = open_ledger(url(path))
    charged(ledger, "0.1", key="k")
    with views.open_reading(ledger) as reading:
        before = views.accounts(reading)
        charged(other, "0.3")
        assert len(views.history(reading)) == 3
        assert views.accounts(reading) == before
        gates = standing_gates(reading, "a")
        assert gates["a#1"].rule.label(gates["a#1"].used)["epsilon"] == "0.1"
        # The secret is read in the same snapshot.
        assert release_values(reading, releases(reading)) == {}
    assert views.accounts(ledger) != before


def test_a_status_asks_a_few_questions(ledger):
    """Their number is that of one snapshot, however much was charged."""
    fields = {"policies": [MEMBER], "populations": (POPULATION,)}

    def count() -> int:
        with views.open_reading(ledger) as reading:
            asked, run = list[Any](), reading.transaction.run

            def note(questions: Any) -> list[list[Any]]:
                asked.extend(questions)
                return run(questions)

            reading.transaction.run = note  # type: ignore[method-assign]
            for standing in standings(reading, PolicySet({})):
                name = standing.dataset
                runs = dataset_runs(reading, name)
                for each in runs.runs[-5:]:
                    run_charges(reading, name, each)
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


def test_no_two_files_name_a_statement_alike():
    """The later one would take the place of the earlier one."""
    names = [
        name
        for file in ("schema", "statements", "audit", "views")
        for name in read_statements(file)
    ]
    assert len(names) == len({*names})
