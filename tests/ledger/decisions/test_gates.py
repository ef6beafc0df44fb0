"""A step passes the gates of all its accounts or none; a refusal says which and why."""

from __future__ import annotations

import random
import re
from fractions import Fraction
from typing import Any

import pytest

from dpflow import ApproxDP, Gaussian, PoissonSampledGaussian, PureDP, guarded
from dpflow.accounting import make_filter
from dpflow.accounting.costs.base import Cost
from dpflow.accounting.rules.rule import Odometer
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import (
    BudgetExhausted,
    BudgetRefused,
    PolicyChanged,
    UnsupportedCost,
)
from dpflow.ledger import views
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.decisions.policy_changes import Proposal
from dpflow.ledger.decisions.refusals import Shortage, describe_members
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.views.accounts import standing_gates
from dpflow.policy import Policy
from tests.ledger.support import (
    audit,
    body,
    everything,
    granted,
    kinds,
    make_policy,
    read,
    refused,
    sums,
)
from tests.projects import POLICY, make_project

pytestmark = pytest.mark.quick

TENTH = Fraction(1, 10)
ODOMETER = "a#1/odometer/weekly"

# Several accounts


# Refusals


def test_a_refusal_is_journaled_and_costs_nothing(ledger, path):
    """With the request, the rest and a cost that fits."""
    granted(ledger, "0.75")
    error = refused(ledger, "0.5", step="big", flow="f", flow_run="r")
    assert (error.asked["epsilon"], error.left["epsilon"]) == ("0.5", "0.25")
    assert (error.dataset, error.gate, error.theorem) == ("a", "dataset", "basic")
    assert (error.step, error.flow, error.flow_run) == ("big", "f", "r")
    assert error.cost == {"mechanism": "PureDP", "epsilon": "0.5"}
    assert sums(path) == (0, Fraction(3, 4))
    said = body(path, "refuse")
    facts = (said["asked"], said["left"], said["fits"], said["message"])
    assert (error.asked, error.left, error.fits, error.message) == facts
    names = said["refusal"], said["step"], said["flow_run"]
    assert names == ("BudgetRefused", "big", "r")
    assert read(path, "SELECT id, dataset, refusals FROM run") == [("r", "a", 1)]
    audit(path)


def test_a_refusal_that_no_noise_helps_says_why(ledger):
    """Zeros are named, and a step above the whole budget says so."""
    wide = "{epsilon: 1, delta: 1e-6}"
    cases: list[tuple[str, Cost | None, Cost, str]] = [
        (
            wide,
            ApproxDP(epsilon="0.75", delta="1e-6"),
            ApproxDP(epsilon="0.5", delta="1e-8"),
            "Remaining: epsilon 0.25, delta 0 of (epsilon 1, delta 1e-6). No amount of "  # noqa: ISC004
            "noise makes it fit. Missing: 1% of the budget's delta.",
        ),
        (
            wide,
            None,
            ApproxDP(epsilon="0.1", delta="1e-5"),
            "It needs 10 times the budget's delta, 100% remain.",
        ),
    ]
    for number, (budget, before, cost, sentence) in enumerate(cases):
        policies = [make_policy(f"d{number}", budget=budget)]
        if before is not None:
            granted(ledger, before, policies=policies)
        assert sentence in refused(ledger, cost, policies=policies).message


def test_what_would_fit_fits(ledger):
    """The factor of noise that a refusal names is admitted, and not far too much."""
    granted(ledger, "0.7")
    error = refused(ledger, "0.5")
    factor = Fraction(error.fits.split()[1])
    assert Fraction(5, 3) <= factor <= Fraction(17, 10)
    (suggested,) = re.findall(r"PureDP\(epsilon=(0\.\d{1,4})\)", error.fits)
    granted(ledger, suggested)


# Odometers

HALTING = make_policy(
    budget="{epsilon: 20, delta: 1e-6}",
    filter="gdp",
    odometer="{theorem: rdp, delta: 1e-6, order: 8}",
    flows="{weekly: {halt_at_epsilon: 3}, free: {}}",
)
STEP, SMALL = Gaussian(sensitivity=1, sigma=5), Gaussian(sensitivity=1, sigma=500)


def weekly(ledger: Ledger, cost: Cost, run: str | None = "run 1", **more: Any) -> str:
    """Reserve in a run of the weekly flow."""
    fields = {"policies": [HALTING], "flow": "weekly", "flow_run": run, **more}
    return granted(ledger, cost, **fields)


#: Steps after six that the halt leaves room for, and how each is refused.
HALTED = "halted this flow run"
AFTER_SIX = [
    (STEP, {}, "above halt_at_epsilon 3"),
    *((cost, {}, HALTED) for cost in (SMALL, STEP)),
    (SMALL, {"run": "run 2"}, None),
    (SMALL, {"run": None}, None),
    (STEP, {"flow": "free"}, None),
    (STEP, {"run": "run 2"}, "would rise"),
    (SMALL, {"run": "run 2"}, HALTED),
]


def test_an_odometer_halts_its_flow_run(ledger, path):
    """At log(1e6)/7 + n * 0.16 <= 3 there are six steps; then none of the run.

    Another run's cheaper step fits, its dear one does not; no other flow is halted.
    """
    for _ in range(6):
        ledger.settle(weekly(ledger, STEP))
    assert sums(path, ODOMETER) == (Fraction(96, 100), 0)
    assert sums(path) == (Fraction(24, 100), 0)
    errors = []
    for cost, fields, words in AFTER_SIX:
        if words is None:
            weekly(ledger, cost, **fields)
            continue
        with pytest.raises(BudgetRefused, match=words) as caught:
            weekly(ledger, cost, **fields)
        errors.append(caught.value)
        if words == HALTED:
            assert "No further DP step" in caught.value.fits
    first = errors[0]
    assert type(first) is BudgetExhausted
    assert (first.gate, first.theorem) == ("odometer", "rdp")
    reading = Fraction(6 * 16, 100) + Fraction("1.973644")
    assert 3 - reading - Fraction(1, 10**5) < Fraction(first.left["epsilon"])
    assert Fraction(first.left["epsilon"]) < 3 - reading
    audit(path)


def test_a_reading_at_the_halt_is_admitted(ledger):
    """Exactly at it, and not a hair above; an undefined reading is above any."""
    weekly(ledger, STEP)
    gate = standing_gates(ledger, "a")[ODOMETER]
    assert isinstance(gate.rule, Odometer)
    price = gate.price(STEP)
    reading_at = Fraction(gate.rule.read(gate.used + price))
    assert gate._replace(halt=reading_at).admits(price)
    assert not gate._replace(halt=reading_at - Fraction(1, 10**40)).admits(price)
    assert not gate._replace(used=Tally((0, 1))).admits(price)


def test_a_step_that_two_gates_refuse_halts_too(ledger, path):
    """The filter is named first, but the odometer would have passed its halt."""
    with pytest.raises(BudgetRefused) as caught:
        weekly(ledger, Gaussian(sensitivity=1, sigma="0.05"))
    assert caught.value.gate == "dataset"
    with pytest.raises(BudgetRefused, match="halted this flow run"):
        weekly(ledger, SMALL)
    assert kinds(path, ODOMETER)[-2:] == ["refuse", "refuse"]
    with pytest.raises(BudgetRefused, match="No further DP step") as caught:
        weekly(ledger, Gaussian(sensitivity=1, sigma="0.05"))
    assert caught.value.gate == "dataset"
    audit(path)


def test_an_uncovered_step_makes_the_reading_undefined(ledger, path):
    """It is counted, and a void takes the count back; a halt would never halt then."""
    policy = make_policy(
        budget="{epsilon: 20, delta: 1e-6}",
        odometer="{theorem: rdp, delta: 1e-6, order: 8}",
        flows="{weekly: {}, halts: {halt_at_epsilon: 3}}",
    )
    here: dict[str, Any] = {"policies": [policy]}
    cost, small = ApproxDP(epsilon="0.1", delta="1e-9"), PureDP(epsilon="0.01")

    def reading() -> float:
        (view,) = (v for v in views.accounts(ledger) if v.id == ODOMETER)
        assert view.reading is not None
        return view.reading

    reservation = weekly(ledger, cost, **here)
    assert read(path, f"SELECT held FROM account WHERE id = '{ODOMETER}'") == [
        ("[0,1]",)
    ]
    assert reading() == float("inf")
    weekly(ledger, small, **here)
    ledger.void(reservation, reason="test")
    assert reading() < 3
    before = everything(path)
    with pytest.raises(UnsupportedCost):
        weekly(ledger, cost, flow="halts", **here)
    assert before == everything(path)
    weekly(ledger, small, flow="halts", **here)


FILTERS = ("auto", "gdp", "residue", "rdp", "zcdp", "basic", "rogers", "whitehouse")


def draw_cost(draw: random.Random) -> Cost:
    """Return a step of any kind and size."""
    size = draw.choice(["0.01", "0.3", "2", "50"])
    noise = draw.choice([1, 5, 40])
    return draw.choice(
        [
            PureDP(epsilon=size),
            ApproxDP(epsilon=size, delta=draw.choice(["1e-9", "7e-8", "1e-3"])),
            Gaussian(sensitivity=1, noise_multiplier=noise),
            PoissonSampledGaussian(noise_multiplier=noise, sampling_rate="0.01"),
        ]
    )


@pytest.mark.parametrize("theorem", FILTERS)
def test_a_refused_step_needs_more_than_remains(theorem):
    """Needed and remaining shares are of one component, and never negative."""
    draw, refused = random.Random(7), 0
    for _ in range(40):
        rule = make_filter(theorem, epsilon=Fraction(2), delta=Fraction("1e-6"))
        used = rule.zero()
        for _ in range(30):
            try:
                amount = rule.price(draw_cost(draw), used)
            except UnsupportedCost:
                continue
            if rule.admits(used + amount):
                used += amount
                continue
            refused += 1
            reasons = [*describe_members(rule, used, amount)]
            assert len(reasons) == len(rule.members)
            if rule.members:
                ways = ("ended", "cannot price this step", "needs")
                assert all(any(way in each for way in ways) for each in reasons)
                continue
            shortage = Shortage.measure(rule, used, amount)
            assert 0 <= shortage.remaining < shortage.needed
            assert shortage.remaining <= 1
    assert refused > 5


def test_advice_ends_at_ten_times_the_noise(tmp_path, monkeypatch):
    """Above it the refusal says what is missing."""
    make_project(tmp_path, monkeypatch)
    charge(PureDP(epsilon="0.9"))
    assert "times its noise it would still fit" in refusal(PureDP(epsilon="0.98"))
    text = refusal(PureDP(epsilon="1.5"))
    assert "It needs 1.5 times the budget, 10% remain. In its currency it needs" in text
    assert "Missing: 1.4 times the budget. Nothing was charged" in text


def test_a_union_says_what_remains_and_which_member_ended(tmp_path, monkeypatch):
    """In per cent, with a cause for each member."""
    policy = POLICY.replace("{epsilon: 1}", "{epsilon: 3, delta: 1e-6}")
    make_project(tmp_path, monkeypatch, policy.replace("basic", "auto"))
    step = ApproxDP(epsilon="0.5", delta="7e-8")
    charge(step)
    ended = (
        "Each of its members refuses it: residue ended, its budget is used up; rdp "
        "ended at an earlier step that it cannot price; zcdp ended, its budget is used "
        "up; basic "
    )
    assert f"{ended}needs 70% of its budget's delta, 30% remain." in refusal(step)
    noise = Gaussian(sensitivity=1, noise_multiplier=40)
    assert f"{ended}cannot price this step." in refusal(noise)


def charge(cost: Cost) -> None:
    """Charge a step."""
    guarded(dataset="shop", cost=cost, name="step", noise="own")(lambda: 1)()


def refusal(cost: Cost) -> str:
    """Return the words of the refusal of a step."""
    with pytest.raises(BudgetRefused) as caught:
        charge(cost)
    return caught.value.message


def test_the_fullest_of_the_gates_that_refuse_is_named(tmp_path, monkeypatch):
    """A share that is used up, or the dataset that others used up."""
    flows = "flows: {a: {epsilon: 0.5}, b: {epsilon: 0.9}}\n"
    make_project(tmp_path, monkeypatch, POLICY + flows)

    def ask(flow: str, epsilon: str) -> None:
        cost = PureDP(epsilon=epsilon)
        step = guarded(dataset="shop", cost=cost, name="step", flow=flow, noise="own")
        step(lambda: 1)()

    ask("a", "0.5")
    with pytest.raises(BudgetRefused, match="by the share of flow 'a' in dataset"):
        ask("a", "0.6")
    ask("b", "0.49")
    with pytest.raises(BudgetRefused, match="by the basic filter of dataset 'shop'"):
        ask("b", "0.6")


REPORT, BUDGET = "weekly-report", "{epsilon: 100}"


def reserving(flows: str, **fields: str) -> Policy:
    """Make a policy of basic composition with epsilon 100 and these flows."""
    given = {"budget": BUDGET, "other_flows": "allow", **fields}
    return make_policy(flows=flows, **given)


TWO = reserving("{a: {epsilon: 40, reserved: true}, b: {epsilon: 40, reserved: true}}")
ONE = reserving(f"{{{REPORT}: {{epsilon: 52, reserved: true}}}}")


def fits(ledger: Ledger, policy: Policy, cost: str, flow: str | None) -> bool:
    """Say whether a step is granted."""
    try:
        granted(ledger, cost, policies=[policy], flow=flow)
    except BudgetRefused:
        return False
    return True


def apply(ledger: Ledger, policy: Policy) -> Proposal:
    """Apply a policy to a term that was charged."""
    return ledger.apply(policy, reason="a test")


@pytest.mark.promise("reserved-share")
def test_without_reserved_the_others_take_the_share(ledger):
    """The negative control: a share alone is a limit."""
    plain = reserving(f"{{{REPORT}: {{epsilon: 52}}}}")
    assert fits(ledger, plain, "100", None)
    assert not fits(ledger, plain, "1", REPORT)


@pytest.mark.promise("reserved-share")
def test_a_charge_posts_to_the_share_or_to_others(ledger, path):
    """What returns comes back to its own account."""
    name = granted(ledger, "10", policies=[TWO], flow="a")
    granted(ledger, "20", policies=[TWO], flow="c")
    assert sums(path, "a#1")[1] == 30
    assert (sums(path, "a#1/others")[1], sums(path, "a#1/flow/a")[1]) == (20, 10)
    ledger.void(name, reason="a test")
    assert (sums(path, "a#1/others")[1], sums(path, "a#1/flow/a")[1]) == (20, 0)


def test_prior_spending_and_corrections_post_to_the_same_accounts(ledger, path):
    """Of a reserved flow to its share, all else to `others`; both may overdraw."""
    pure = PureDP(epsilon=10)
    ledger.charge_prior(TWO, pure, reason="a test", flow="a")
    ledger.charge_prior(TWO, pure, reason="a test")
    name = granted(ledger, "1", policies=[TWO], flow="c")
    ledger.amend(name, PureDP(epsilon=15), reason="a test")
    posted = [sum(sums(path, f"a#1{place}")) for place in ("", "/others", "/flow/a")]
    assert posted == [35, 25, 10]
    assert not fits(ledger, TWO, "1", "c")
    assert fits(ledger, TWO, "30", "a")
    assert verify(ledger).bad == []


def test_a_refusal_names_the_reserved_shares(ledger):
    """With the rest that remains."""
    granted(ledger, "20", policies=[TWO], flow="c")
    with pytest.raises(BudgetRefused, match="the reserved shares of dataset 'a'") as e:
        granted(ledger, "1", policies=[TWO], flow=None)
    assert "the rest is reserved" in e.value.message
    assert e.value.details["gate"] == "others"


def test_dropping_one_of_two_used_shares_needs_a_new_term(ledger):
    """Others could take the second share: 40 used by a, 20 by others, 40 for b."""
    granted(ledger, "40", policies=[TWO], flow="a")
    granted(ledger, "20", policies=[TWO], flow="c")
    for edit in (
        "{a: {epsilon: 40}, b: {epsilon: 40, reserved: true}}",
        "{b: {epsilon: 40, reserved: true}}",
        "{a: {epsilon: 30, reserved: true}, b: {epsilon: 40, reserved: true}}",
    ):
        with pytest.raises(PolicyChanged, match="cannot be applied in place"):
            apply(ledger, reserving(edit))
    assert fits(ledger, TWO, "40", "b")


@pytest.mark.parametrize(
    ("before", "after", "allowed"),
    [
        ("40", "40, reserved: true", False),
        ("40, reserved: true", "50, reserved: true", False),
        ("40, reserved: true", "40", True),
        ("40, reserved: true", "30, reserved: true", True),
    ],
)
def test_changes_of_a_reserved_share_in_a_charged_term(ledger, before, after, allowed):
    """Turning it on and raising it need a new term; dropping the last one does not."""
    old, new = (reserving(f"{{a: {{epsilon: {each}}}}}") for each in (before, after))
    granted(ledger, "5", policies=[old], flow="a")
    held = granted(ledger, "5", policies=[old], flow=None)
    if not allowed:
        with pytest.raises(PolicyChanged):
            apply(ledger, new)
        return
    assert apply(ledger, new).action == "tighten"
    ledger.settle(held)
    assert fits(ledger, new, "60", None)
    assert verify(ledger).bad == []


def test_a_budget_below_what_others_used_is_not_applied_in_place(ledger):
    """The share that is reserved would not be free any more; at the usage it is."""
    granted(ledger, "20", policies=[ONE], flow=None)
    flows = f"{{{REPORT}: {{epsilon: 52, reserved: true}}}}"
    with pytest.raises(PolicyChanged, match="used more in this term"):
        apply(ledger, reserving(flows, budget="{epsilon: 71}"))
    assert apply(ledger, reserving(flows, budget="{epsilon: 72}")).action == "tighten"
    assert verify(ledger).bad == []
