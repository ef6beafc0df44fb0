"""Terms under one filter add up in its tally, and the first charged term fixes that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dpflow import Gaussian
from dpflow.exceptions import PolicyNotApplied
from dpflow.forecast.advice import advice
from dpflow.ledger import views
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.decisions.terms import opened_as
from dpflow.ledger.ledger import Ledger
from dpflow.policy import Policy, parse_policy
from dpflow.policy.lifetime import Opened
from dpflow.show.guarantees import term_guarantee, terms_in_words
from tests.ledger.support import (
    Place,
    audit,
    granted,
    make_ledger,
    make_policy,
    repair,
    terms_of,
)

#: A year of Gaussian reports.
YEAR = Gaussian(sensitivity=1, sigma=2)
NEW: dict[str, Any] = {"new_term": True, "reason": "a new year"}


def policy(lifetime: str = "6.991", delta: str = "5e-6", **fields: str) -> Policy:
    """Make a policy of terms of (3, 1e-6)."""
    given = {
        "budget": "{epsilon: 3, delta: 1e-6}",
        "filter": "gdp",
        "lifetime": f"{{epsilon: {lifetime}, delta: {delta}}}",
    }
    return make_policy(**given | fields)


def charge(ledger: Ledger, file: Policy, **fields: Any) -> str:
    """Charge a year of reports."""
    return granted(ledger, YEAR, policies=[file], **fields)


def open_terms(ledger: Ledger, file: Policy, count: int, **fields: Any) -> None:
    """Open terms and charge each; the charges stay open."""
    for number in range(count):
        if number:
            ledger.apply(file, **NEW)
        charge(ledger, file, **fields)


def refuse_renewal(
    ledger: Ledger, file: Policy, match: str = "above its lifetime"
) -> PolicyNotApplied:
    """Apply a policy to a new term, which its lifetime refuses."""
    with pytest.raises(PolicyNotApplied, match=match) as caught:
        ledger.apply(file, **NEW)
    return caught.value


def words(ledger: Ledger, file: Policy) -> str:
    """Return the guarantee and what the terms add up to."""
    terms = views.terms(ledger, file.dataset)
    return f"{term_guarantee(file.to_declared(), terms)} {terms_in_words(terms)}"


def test_five_terms_lose_6_991_and_not_15(ledger: Ledger) -> None:
    """The printed number is rounded up, and the lifetime holds it exactly."""
    file = policy()
    open_terms(ledger, file, 5)
    text = words(ledger, file)
    total = "(epsilon = 6.991, delta = 5e-06) in the tally of their filter"
    assert f"stay within (epsilon = 6.991, delta = 5e-06); those charged so far within {total}." in text  # fmt: skip  # noqa: E501
    chosen = "if no term was opened because of a release"
    assert f"Charged terms add up to {total}, {chosen}. The lifetime" in text
    refuse_renewal(ledger, file, r"epsilon = 7\.727, delta = 6e-06")
    codes = {each.code: each.text for each in advice(file, terms=views.terms(ledger, "a"))}  # fmt: skip  # noqa: E501
    assert "lets 5 terms renew" in codes["lifetime"]
    assert "(epsilon = 6.991, delta = 5e-06)" in codes["renewed"]
    audit(ledger)
    assert verify(ledger).fine


def test_a_lifetime_of_6_99_refuses_the_fifth_term(ledger: Ledger) -> None:
    """The refusal says what remains, a smaller term fits, and a wide file is judged."""
    file = policy("6.99")
    open_terms(ledger, file, 4)
    match = r"= \(epsilon = 6\.991, delta = 5e-06\) in the tally .* above its lifetime \(epsilon = 6\.99, .*\(epsilon = 2\.999, delta = 1e-06\) remains"  # noqa: E501
    for wide in (file, policy("6.99", other_flows="refuse")):
        total = refuse_renewal(ledger, wide, match).total
        assert total == {"epsilon": "6.991", "delta": "0.000005"}
    looser = policy("6.99", budget="{epsilon: 3.1, delta: 1e-6}")
    assert "above its lifetime" in ledger.propose(looser).obstacle
    last = policy("6.99", budget="{epsilon: 2.999, delta: 1e-6}")
    assert ledger.apply(last, **NEW).term == 5
    assert verify(ledger).fine


def test_deltas_of_gaussian_terms_need_not_add_up(ledger: Ledger) -> None:
    """Five terms are (7.493, 1e-6), too, and that is printed under such a lifetime."""
    file = policy("7.493", "1e-6")
    open_terms(ledger, file, 5)
    assert "add up to (epsilon = 7.493, delta = 1e-06) in" in words(ledger, file)


TOTALS = {"zcdp": "6.968", "{theorem: rdp, order: 9}": "9.461"}
BY_BUDGETS = ("basic", "rdp", "auto", "residue", "whitehouse")
TOTALS |= dict.fromkeys((*BY_BUDGETS, "{theorem: rdp, orders: [8, 9]}"), "15")


@pytest.mark.parametrize(("filter_", "total"), TOTALS.items())
def test_each_filter_adds_terms_up_in_its_own_way(filter_: str, total: str) -> None:
    """In its tally where constants are declared and steady, else by budgets."""
    file = policy("15", filter=filter_)
    terms = [opened_as(file, number) for number in range(1, 6)]
    assert f"add up to (epsilon = {total}, delta = 5e-06)" in terms_in_words(terms)


OTHERS = {
    "filter": {"filter": "zcdp"},
    "split": {"filter": "{theorem: gdp, delta_loss: 5e-7}"},
    "budgets only": {"filter": "auto"},
    "unit": {"unit": "visit"},
    "relation": {"relation": "replace-one"},
}


@pytest.mark.parametrize("fields", OTHERS.values(), ids=OTHERS)
def test_a_term_of_another_kind_ends_the_promise(
    ledger: Ledger, fields: dict[str, str]
) -> None:
    """It needs --raise-lifetime, and no number is printed."""
    charge(ledger, policy("15"))
    other = policy("15", **fields)
    match = "in the tally of term 1, and term 2 differs.*--raise-lifetime"
    refuse_renewal(ledger, other, match)
    ledger.apply(other, **NEW, raise_lifetime=True)
    assert "stay within" not in words(ledger, other)
    granted(ledger, "0.1", policies=[other])
    text = words(ledger, other)
    assert "may exceed the lifetime" in text
    assert "no sum bounds" in text
    assert "add up to" not in text
    # Every further term needs the flag as well.
    refuse_renewal(ledger, other, "--raise-lifetime")
    assert verify(ledger).fine


def test_an_order_must_be_declared_and_equal(ledger: Ledger) -> None:
    """Orders price steps: a second one ends the promise."""
    order = {"filter": "{theorem: rdp, order: 9}"}
    charge(ledger, policy("15", **order))
    for filter_ in ("{theorem: rdp, order: 8}", "rdp"):
        refuse_renewal(ledger, policy("15", filter=filter_), "--raise-lifetime")
    # Numbers and flows may change.
    flows = "{weekly: {epsilon: 2, delta: 5e-7}}"
    smaller = policy("15", **order, budget="{epsilon: 2, delta: 1e-6}", flows=flows)
    assert ledger.apply(smaller, **NEW).term == 2


def test_under_sums_of_budgets_any_filter_may_follow(ledger: Ledger) -> None:
    """A first term under `auto` fixes basic sums, also for later Gaussian terms."""
    charge(ledger, policy("6", filter="auto"))
    gaussian = policy("6")
    assert ledger.apply(gaussian, **NEW).term == 2
    charge(ledger, gaussian)
    assert "add up to (epsilon = 6, delta = 2e-06), if no" in words(ledger, gaussian)
    refuse_renewal(ledger, gaussian)


def test_a_tightened_term_counts_with_the_threshold_it_was_opened_with(
    ledger: Ledger,
) -> None:
    """Also before its delta; its author may have seen outputs."""
    file = policy("4.288")
    charge(ledger, file)
    small = policy("4.288", budget="{epsilon: 2, delta: 1e-6}")
    assert ledger.apply(small).action == "tighten"
    ledger.apply(file, **NEW)
    charge(ledger, file)
    assert "add up to (epsilon = 4.288, delta = 2e-06)" in words(ledger, file)
    tiny = policy("4.288", budget="{epsilon: 1.5, delta: 1e-6}")
    refuse_renewal(ledger, tiny)


def test_a_lifetime_named_or_raised_after_a_charge_is_no_guarantee(
    ledger: Ledger,
) -> None:
    """Outputs may have chosen it; a lowered one leaves the first promise."""
    bare = make_policy(budget="{epsilon: 3, delta: 1e-6}", filter="gdp")
    charge(ledger, bare)
    named = policy()
    ledger.apply(named)
    assert "limits further terms. It was named or raised after" in words(ledger, named)
    other = {"dataset": "b"}
    charge(ledger, policy("5", **other))
    lower = policy("4.5", **other)
    ledger.apply(lower)
    text = words(ledger, lower)
    assert "stay within (epsilon = 5, delta = 5e-06); further ones fit up to (epsilon = 4.5" in text  # fmt: skip  # noqa: E501
    higher = policy("9", **other)
    ledger.apply(higher, **NEW, raise_lifetime=True)
    assert "(epsilon = 9, delta = 5e-06) limits further terms" in words(ledger, higher)


def test_settled_usage_in_place_of_thresholds_is_caught(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: usage without held amounts admits any number of running terms."""
    file = policy("4.288")
    open_terms(ledger, file, 2)
    refuse_renewal(ledger, file)
    none = {"epsilon": "0", "delta": "0"}, None
    kind = "dpflow.ledger.decisions.lifetimes.Opened"
    monkeypatch.setattr(kind, lambda unit, relation, *_: Opened(unit, relation, *none))
    assert ledger.apply(file, **NEW).term == 3


def test_a_population_has_its_own_lifetime_under_the_same_rule(ledger: Ledger) -> None:
    """Its terms add up in its tally; those of its datasets in theirs."""
    text = "population: people\nunit: customer\nrelation: add-or-remove\nfilter: gdp\n"
    text += "budget: {epsilon: 3, delta: 1e-6}\nlifetime: {epsilon: 4.288, delta: 2e-6}"
    people = parse_policy(text)
    shop = policy("15", population="people")
    for number in (1, 2):
        if number == 2:
            ledger.apply(people, **NEW)
        granted(ledger, "0.1", policies=[shop], populations=(people,))
    assert "add up to (epsilon = 4.288, delta = 2e-06)" in words(ledger, people)
    refuse_renewal(ledger, people)


def test_thresholds_of_parts_by_a_public_id_add_up(ledger: Ledger) -> None:
    """A person is in one part, which every term gives its whole threshold."""
    file = policy("4.288", partition="{by: region}")
    open_terms(ledger, file, 2, partitions=("north",))
    assert "add up to (epsilon = 4.288, delta = 2e-06) in" in words(ledger, file)
    refuse_renewal(ledger, file)


# Terms that another program wrote


@contextmanager
def any_lifetime(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Open terms without the condition of the lifetime."""
    checked = "dpflow.ledger.decisions.policy_changes.lifetime_error"
    with monkeypatch.context() as patch:
        patch.setattr(checked, lambda *_, **__: None)
        yield patch


@pytest.mark.parametrize(
    ("other", "match"),
    [
        ({"lifetime": "4", "delta": "2e-6"}, "above its lifetime"),
        ({"filter": "zcdp"}, "differs"),
        ({"unit": "visit"}, "differs"),
        ({"lifetime": "9"}, "raises the lifetime"),
    ],
)
def test_a_term_past_its_lifetime_is_found(
    path: Place, monkeypatch: pytest.MonkeyPatch, other: dict[str, str], match: str
) -> None:
    """By `verify`, which compares the terms with their lifetime."""
    ledger = make_ledger(path)
    charge(ledger, policy())
    with any_lifetime(monkeypatch):
        ledger.apply(policy(**other), **NEW)
    charge(ledger, policy(**other))
    assert match in str(verify(ledger).bad)


def test_a_charge_that_only_the_witness_saw_fixes_the_method(
    path: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after the repair that charges it again."""
    ledger = make_ledger(path)
    sums = policy("9", filter="auto")
    ledger.apply(sums)
    monkeypatch.setattr(ledger.watch, "forgotten", lambda *_: ["a#1"])
    for file in (policy("9"), sums):
        ledger.apply(file, **NEW)
        repair(ledger, {"a#1": (1, *[0] * 11)})
        granted(ledger, "0.1", policies=[file])
    assert len(terms_of(ledger)) == 3
    assert verify(ledger).fine
