"""What people read: spent, reserved and forfeited apart, the journal, refusals."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from dpflow.ledger.decision.office import Amend
from dpflow.ledger.entry import Entry
from dpflow.ledger.office import withdraw_release
from dpflow.ledger.state import State
from dpflow.ledger.storage.tables import Reading

from dpflow import Gaussian, PureDP
from dpflow.exceptions import (
    BudgetExhausted,
    BudgetRefused,
    ConfigurationError,
    ReleaseError,
)
from dpflow.ledger import Ledger, open_ledger, views
from dpflow.ledger.account_ids import Release
from dpflow.ledger.views.accounts import AccountView, Standing, standings
from dpflow.ledger.views.releases import count_releases, release_value, releases
from dpflow.ledger.views.spending import spending
from dpflow.policy import PolicySet
from tests.ledger.processes import await_death, killed
from tests.ledger.support import (
    BASIC,
    Place,
    granted,
    make_policy,
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


def test_spent_reserved_and_forfeited_are_apart(ledger: Ledger, path: Place) -> None:
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
    other = open_ledger(url(path))
    assert expected == amounts(only(other))
    ledger.close()
    # A server releases the lock of a closed session when it hears of its end.
    await_death(other, live)
    full = {"spent": "0.1", "reserved": "0", "forfeited": "0.6", "left": "0.3"}
    assert full == amounts(only(other))
    assert only(other).used_fraction == pytest.approx(0.7)
    other.close()


def test_history_is_the_journal_newest_first(ledger: Ledger) -> None:
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


def test_history_by_dataset_and_account(ledger: Ledger) -> None:
    """A charge posts to several accounts; by default only the dataset's are shown."""
    granted(ledger, NOISY, policies=[FLOWS], flow="weekly")
    granted(ledger, policies=[make_policy("b")])
    kinds = [(e.account, e.kind) for e in views.history(ledger, "a")]
    assert kinds == [("a#1", "reserve"), ("a#1", "open")]
    every = {e.account for e in views.history(ledger, all_accounts=True)}
    assert every == {"a#1", "a#1/flow/weekly", "a#1/odometer/weekly", "b#1"}
    assert [v.id for v in views.accounts(ledger, "b")] == ["b#1"]
    assert views.accounts(ledger, "c") == []


def test_usage_is_a_curve_from_oldest_to_newest(ledger: Ledger) -> None:
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


def test_a_refusal_is_found_by_every_run_around_it(ledger: Ledger) -> None:
    """As the same error; an exhausted budget, which ends the flow, comes first."""
    runs = ("inner", "outer")
    granted(ledger, "0.6", flow="f", flow_run="outer")
    with pytest.raises(BudgetRefused) as caught:
        granted(
            ledger, "5", flow="f", flow_run="outer", enclosing_runs=runs, step="typo"
        )
    for run in runs:
        refusal = views.refusal_of_run(ledger, run)
        assert refusal is not None
        assert type(refusal) is BudgetRefused
        assert refusal.message == caught.value.message
        assert {**caught.value.details, "flow_run": run} == refusal.details
    assert views.refusal_of_run(ledger, "another") is None
    with pytest.raises(BudgetExhausted):
        granted(ledger, "0.6", flow="f", flow_run="outer")
    refusal = views.refusal_of_run(ledger, "outer")
    assert type(refusal) is BudgetExhausted
    assert refusal.step == "count"


def test_what_is_read_often_reads_no_whole_journal(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `status` shows of a dataset does not grow with its charges."""
    for cost in ("0.1", "0.1", "0.1", "0.1", "0.1", "0.001"):
        ledger.settle(granted(ledger, cost))
    with pytest.raises(BudgetRefused):
        granted(ledger, "0.9", flow_run="r")
    read, numbers = Reading._entry, set[int]()

    def noted(reading: Reading, columns: tuple[Any, ...], *how: Any) -> Entry:
        numbers.add(columns[0])
        return read(reading, columns, *how)

    def number_read(*, history: bool = False) -> int:
        numbers.clear()
        assert Decimal(amounts(only(ledger))["spent"]) >= Decimal("0.5")
        assert len(views.terms(ledger, "a")) == len(views.refusals(ledger)) == 1
        assert views.refusal_of_run(ledger, "r") is not None
        assert [each.threshold for each in views.alerts(ledger, "a")] == ["0.5"]
        assert views.open_reservations(ledger) == []
        assert not history or views.history(ledger)
        return len(numbers)

    monkeypatch.setattr(Reading, "_entry", noted)
    before, whole = number_read(), number_read(history=True)
    for _ in range(5):
        ledger.settle(granted(ledger, "0.001"))
    assert number_read() == before
    assert number_read(history=True) == whole + 10  # the control


def test_the_number_of_releases_is_that_of_their_list(ledger: Ledger) -> None:
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


def test_a_clock_that_jumps_hides_no_entry(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest of a dataset come first, whatever their labels say."""
    label = ledger.label()

    def at(text: str) -> None:
        facts = {**label, "at": text}
        monkeypatch.setattr(Ledger, "label", lambda _: facts)

    made = []
    for time in ("2999-01-01", "1970-01-01", "2026-01-01"):
        at(time)
        made.append(granted(ledger))
    entries = views.history(ledger, "a")
    assert [entry.reservation for entry in entries] == [*made[::-1], None]
    labels = [entry.at for entry in entries]
    # The control: the labels are in another order.
    assert sorted(labels, reverse=True) != labels
    for time, cost in (("2026-01-01", "5"), ("1900-01-01", "6")):
        at(time)
        with pytest.raises(BudgetRefused):
            granted(ledger, cost)
    epsilons = [each.body["asked"]["epsilon"] for each in views.refusals(ledger)]
    assert epsilons == ["6", "5"]


def unusual(ledger: Ledger) -> dict[str, int]:
    """Return how many steps of a term went each unusual way."""
    steps = spending(ledger, "a", (), term=1)[1]
    return {each.what: each.times for each in steps}


def test_steps_that_went_otherwise_are_counted(ledger: Ledger, path: Place) -> None:
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


def test_what_halted_a_flow_holds_until_a_step_of_it_is_granted(
    ledger: Ledger,
) -> None:
    """A mistyped step halts nothing, and another flow's grant frees nothing."""
    policy = make_policy(other_flows="allow")

    def ask(cost: str, flow: str | None) -> str:
        return granted(ledger, cost, policies=[policy], flow=flow, step=f"of {flow}")

    first = ask("0.9", "weekly")
    with pytest.raises(BudgetRefused):
        ask("5", "daily")
    assert views.halts(ledger, "a") == {}
    with pytest.raises(BudgetExhausted):
        ask("0.9", "weekly")
    ask("0.01", "daily")
    ask("0.01", None)
    assert views.halts(ledger, "a")["weekly"].account == "a#1"
    ledger.void(first, reason="not started")
    assert list(views.halts(ledger, "a")) == ["weekly"]
    ask("0.5", "weekly")
    assert views.halts(ledger, "a") == {}


def test_one_release_is_found_without_the_charges_of_others(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its id, or with those of its dataset alone."""
    both = [BASIC, make_policy("b")]
    for key, policies in (("one", both[:1]), ("two", both[:1]), ('th"ree', both)):
        name = granted(ledger, policies=policies, key=key)
        ledger.settle(name, value='"x"')
    queries: list[str] = []
    read = views.releases._kept

    def noted(state: State, row: Release, sizes: Any) -> Any:
        queries.append(row.charge)
        return read(state, row, sizes)

    monkeypatch.setattr(views.releases, "_kept", noted)
    keys = [each.key for each in views.releases.releases(ledger, "b")]
    assert (keys, len(set(queries))) == (['th"ree'], 1)
    for key in ("one", 'th"ree'):
        kept, value = release_value(ledger, key)
        assert (kept.key, value) == (key, '"x"')
        queries.clear()
        assert release_value(ledger, kept.id)[0] == kept
        assert queries == [kept.row.charge]
    assert {each.key for each in views.releases.releases(ledger, "a")} == {
        "one",
        "two",
        'th"ree',
    }
    withdraw_release(ledger, "two", reason="x")
    with pytest.raises(ReleaseError, match="withdrawn"):
        release_value(ledger, "two")


DIVIDED = make_policy(partition="{by: region}", flows="{daily: {epsilon: 0.8}}")
REGIONS = ("east", "north", "south", "west")


@pytest.fixture
def divided(ledger: Ledger) -> Ledger:
    """Return a ledger that charged each region, the first ones most."""
    for number, region in enumerate(REGIONS):
        cost = f"0.{len(REGIONS) - number}"
        name = granted(
            ledger, cost, policies=[DIVIDED], partitions=(region,), flow="daily"
        )
        ledger.settle(name)
    return ledger


def of_part(ledger: Ledger, part: str | None = None) -> Standing:
    """Return the standing of a part, or of the whole dataset."""
    (standing,) = standings(ledger, PolicySet({}), "a", part)
    return standing


def test_a_part_has_the_account_that_it_has_among_all(divided: Ledger) -> None:
    """With the accounts of no part; a part without charges has no account."""
    whole = of_part(divided)
    assert whole.parts == len(REGIONS)
    for region in REGIONS:
        wanted = [v for v in whole.accounts if v.gate.partition in ("", region)]
        assert list(of_part(divided, region).accounts) == wanted
    with pytest.raises(ConfigurationError, match="Its whole budget remains"):
        of_part(divided, "center")


def test_an_overdrawn_account_is_read_with_every_part(divided: Ledger) -> None:
    """It breaks the guarantee of all parts, so that no part may hide it."""
    assert not views.terms(divided, "a")[-1].overdrawn
    name = granted(divided, policies=[DIVIDED], partitions=("east",), flow="daily")
    divided.ask(Amend(charge=name, cost=PureDP(epsilon=5), reason="it cost more"))
    states = {view.id: view.state for view in of_part(divided, "west").accounts}
    assert states["a#1/partition/east"] == "overdrawn"
    assert "a#1/partition/north" not in states
    assert views.terms(divided, "a")[-1].overdrawn


def test_history_shows_what_parts_were_charged(divided: Ledger) -> None:
    """A divided dataset without a lifetime is charged nothing as a whole."""
    charged = {"a#1/partition/west": "0.1", "a#1/partition/south": "0.2"}
    settled = views.history(divided, "a", limit=3)[::2]
    assert {each.account: each.amount["epsilon"] for each in settled} == charged
