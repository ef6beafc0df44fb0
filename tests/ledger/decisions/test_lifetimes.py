"""However policies are edited and applied, all terms together stay in the lifetime."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

import pytest

from dpflow import Gaussian, PureDP
from dpflow.exceptions import BudgetRefused, PolicyChanged, PolicyNotApplied
from dpflow.forecast.advice import advice
from dpflow.ledger import views
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.decisions.decision import Decision
from dpflow.ledger.decisions.terms import FIRST, open_term, view_policy, write_term
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.tables.loading import Scope, load_rows
from dpflow.policy import Policy, parse_policy
from dpflow.policy.lifetime import Opened
from dpflow.show.guarantees import term_guarantee, terms_in_words
from tests.ledger.support import (
    UNIT,
    audit,
    body,
    entries,
    granted,
    make_ledger,
    make_policy,
    refused,
    repair,
    terms_of,
)
from tests.sizes import spread

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


def test_five_terms_lose_6_991_and_not_15(ledger):
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


def test_a_lifetime_of_6_99_refuses_the_fifth_term(ledger):
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


def test_deltas_of_gaussian_terms_need_not_add_up(ledger):
    """Five terms are (7.493, 1e-6), too, and that is printed under such a lifetime."""
    file = policy("7.493", "1e-6")
    open_terms(ledger, file, 5)
    assert "add up to (epsilon = 7.493, delta = 1e-06) in" in words(ledger, file)


TOTALS = {"zcdp": "6.968", "{theorem: rdp, order: 9}": "9.461"}
BY_BUDGETS = ("basic", "rdp", "auto", "residue", "whitehouse")
TOTALS |= dict.fromkeys((*BY_BUDGETS, "{theorem: rdp, orders: [8, 9]}"), "15")


@pytest.mark.parametrize(("filter_", "total"), TOTALS.items())
def test_each_filter_adds_terms_up_in_its_own_way(filter_, total):
    """In its tally where constants are declared and steady, else by budgets."""
    file = policy("15", filter=filter_)
    terms = [view_policy(file, number) for number in range(1, 6)]
    assert f"add up to (epsilon = {total}, delta = 5e-06)" in terms_in_words(terms)


OTHERS = {
    "filter": {"filter": "zcdp"},
    "split": {"filter": "{theorem: gdp, delta_loss: 5e-7}"},
    "budgets only": {"filter": "auto"},
    "unit": {"unit": "visit"},
    "relation": {"relation": "replace-one"},
}


@pytest.mark.parametrize("fields", OTHERS.values(), ids=OTHERS)
def test_a_term_of_another_kind_ends_the_promise(ledger, fields):
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


def test_an_order_must_be_declared_and_equal(ledger):
    """Orders price steps: a second one ends the promise."""
    order = {"filter": "{theorem: rdp, order: 9}"}
    charge(ledger, policy("15", **order))
    for filter_ in ("{theorem: rdp, order: 8}", "rdp"):
        refuse_renewal(ledger, policy("15", filter=filter_), "--raise-lifetime")
    # Numbers and flows may change.
    flows = "{weekly: {epsilon: 2, delta: 5e-7}}"
    smaller = policy("15", **order, budget="{epsilon: 2, delta: 1e-6}", flows=flows)
    assert ledger.apply(smaller, **NEW).term == 2


def test_under_sums_of_budgets_any_filter_may_follow(ledger):
    """A first term under `auto` fixes basic sums, also for later Gaussian terms."""
    charge(ledger, policy("6", filter="auto"))
    gaussian = policy("6")
    assert ledger.apply(gaussian, **NEW).term == 2
    charge(ledger, gaussian)
    assert "add up to (epsilon = 6, delta = 2e-06), if no" in words(ledger, gaussian)
    refuse_renewal(ledger, gaussian)


def test_a_tightened_term_counts_with_the_threshold_it_was_opened_with(ledger):
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


def test_a_lifetime_named_or_raised_after_a_charge_is_no_guarantee(ledger):
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


def test_settled_usage_in_place_of_thresholds_is_caught(ledger, monkeypatch):
    """Control: usage without held amounts admits any number of running terms."""
    file = policy("4.288")
    open_terms(ledger, file, 2)
    refuse_renewal(ledger, file)
    none = {"epsilon": "0", "delta": "0"}, None
    kind = "dpflow.ledger.decisions.lifetimes.Opened"
    monkeypatch.setattr(kind, lambda unit, relation, *_: Opened(unit, relation, *none))
    assert ledger.apply(file, **NEW).term == 3


def test_a_population_has_its_own_lifetime_under_the_same_rule(ledger):
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


def test_thresholds_of_parts_by_a_public_id_add_up(ledger):
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
def test_a_term_past_its_lifetime_is_found(path, monkeypatch, other, match):
    """By `verify`, which compares the terms with their lifetime."""
    ledger = make_ledger(path)
    charge(ledger, policy())
    with any_lifetime(monkeypatch):
        ledger.apply(policy(**other), **NEW)
    charge(ledger, policy(**other))
    assert match in str(verify(ledger).bad)


def test_a_charge_that_only_the_witness_saw_fixes_the_method(path, monkeypatch):
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


RENEWED = {"new_term": True, "reason": "a new year"}
RAISED = {"new_term": True, "reason": "a new year", "raise_lifetime": True}


def basic(epsilon: str, lifetime: str | None = None, **fields: str) -> Policy:
    """Make a basic of basic composition."""
    if lifetime is not None:
        fields["lifetime"] = f"{{epsilon: {lifetime}}}"
    return make_policy(budget=f"{{epsilon: {epsilon}}}", **fields)


def spent(ledger: Ledger) -> Fraction:
    """Return the epsilon that was ever admitted and not voided, by the journal."""
    units = sum(
        held[0]
        for entry in entries(ledger)
        for _, held in entry.postings.values()
        if entry.kind in ("reserve", "void")
    )
    return Fraction(units, UNIT)


# The cap


@pytest.mark.parametrize("while_frozen", [False, True])
def test_a_term_that_was_overdrawn_does_not_count_as_its_budget(ledger, while_frozen):
    """No sum bounds what it lost; who opens a further term has to say so."""
    before = basic("1", "2")
    name = granted(ledger, policies=[before])
    words = term_guarantee(before.to_declared(), views.terms(ledger, "a"))
    assert "All terms together stay within (epsilon = 2, delta = 0)" in words
    if while_frozen:
        ledger.freeze("a", reason="looked odd")
    ledger.amend(name, PureDP(epsilon=5), reason="it was a sum")
    if while_frozen:
        ledger.freeze("a", reason="it was odd", unfreeze=True)
    words = term_guarantee(before.to_declared(), views.terms(ledger, "a"))
    assert "together may exceed the lifetime (epsilon = 2, delta" in words
    for file in (before, basic("1", "7")):
        with pytest.raises(PolicyNotApplied, match="in term 1 than its budget"):
            ledger.apply(file, **RENEWED)
    assert len(terms_of(ledger)) == 1
    assert "in term 1" in ledger.propose(basic("1", "7")).obstacle
    words = terms_in_words(ledger.apply(before, **RAISED).terms)
    assert "1 (epsilon = 1, delta = 0) for customer (add-or-remove), overdrawn" in words
    granted(ledger, policies=[before])


def test_the_terms_add_up_to_the_lifetime_exactly(ledger):
    """Equality fits; the least more does not, and the error holds the numbers."""
    granted(ledger)
    with pytest.raises(PolicyNotApplied) as caught:
        ledger.apply(basic("2.000000001", "3"), **RENEWED)
    assert caught.value.lifetime == {"epsilon": "3", "delta": "0"}
    assert caught.value.total == {"epsilon": "3.000000001", "delta": "0"}
    assert ledger.apply(basic("2", "3"), **RENEWED).term == 2


def test_a_lifetime_below_what_was_opened_is_no_promise(ledger):
    """It would be broken already; later it can be lowered to the sum, not below."""
    granted(ledger)
    with pytest.raises(PolicyNotApplied, match=r"its lifetime .*Write `lifetime"):
        ledger.apply(basic("0.2", "0.9"))
    for lifetime in ("5", "1"):
        done = ledger.apply(basic("0.2", lifetime))
        assert done.action == "tighten"


def test_the_lifetime_is_raised_only_by_saying_so(ledger):
    """With a new term, a reason, and a flag; no term opens without a lifetime."""
    granted(ledger, policies=[basic("1", "2")])
    longer = basic("1.5", "2.5")
    with pytest.raises(PolicyChanged, match=r"lifetime\.epsilon: ledger 2, file 2\.5"):
        ledger.apply(longer, raise_lifetime=True)
    with pytest.raises(PolicyNotApplied, match="--raise-lifetime"):
        ledger.apply(longer, **RENEWED)
    done = ledger.apply(longer, **RAISED)
    assert (done.term, done.terms[-1].lifetime) == (2, {"epsilon": "2.5", "delta": "0"})
    changes = body(ledger, "open")["changes"]
    assert "lifetime.epsilon: ledger 2, file 2.5" in changes
    granted(ledger, policies=[longer])
    with pytest.raises(PolicyChanged, match="lifetime"):
        ledger.apply(basic("1"))
    with pytest.raises(PolicyNotApplied, match="no lifetime caps"):
        ledger.apply(basic("1"), **RAISED)


# In words


def test_no_step_replaces_what_a_person_applied(ledger):
    """Whatever the reason is: also that of terms which steps open."""
    granted(ledger, policies=[basic("1", "3")])
    ledger.apply(basic("2", "3"), new_term=True, reason=FIRST)
    with pytest.raises(PolicyChanged):
        granted(ledger, policies=[basic("3", "3")])
    audit(ledger)


def test_no_step_opens_a_term_after_a_repair_charged_an_older_one(ledger):
    """The first term was uncharged when its file was replaced; its charge was lost."""
    for epsilon in ("1", "2"):
        refused(ledger, "9", policies=[basic(epsilon, "3")])
    repair(ledger, {"a#1": (UNIT, 0)})
    with pytest.raises(PolicyChanged):
        granted(ledger, policies=[basic("2.5", "3")])
    with pytest.raises(PolicyNotApplied, match="above its lifetime"):
        ledger.apply(basic("2.5", "3"))
    for _ in range(2):
        with pytest.raises(PolicyNotApplied, match="since a step opened term 2"):
            granted(ledger, policies=[basic("2", "3")])
    ledger.apply(basic("2", "3"), new_term=True, reason="the rest")
    granted(ledger, policies=[basic("2", "3")])
    audit(ledger)


# Whatever is done

_LIFETIME = Fraction(5)
_EPSILONS = ("0.3", "0.5", "1", "1.7", "2", "3", "4.9")
_LOYAL, _UNDONE = 0.9, 0.7
_CAPS = (None, "5", "4", "5", "3.1", "50")


def _act(ledger: Ledger, chance: random.Random, files: list[Policy]) -> None:
    """Do something that a person or a worker may do; refusals are part of it.

    Of `files`, the first is what was applied last and the last what was edited last.
    """
    deed = chance.choice(("edit", "apply", "new term", "charge", "charge", "end"))
    if deed == "edit":
        epsilon, cap = chance.choice(_EPSILONS), chance.choice(_CAPS)
        if cap is None or Fraction(cap) >= Fraction(epsilon):
            files.append(basic(epsilon, cap))
    elif deed in ("apply", "new term"):
        wish = RENEWED if deed == "new term" else {}
        ledger.apply(files[-1], **wish)
        files[:] = [files[-1]]
    elif deed == "charge":
        file = files[0] if chance.random() < _LOYAL else files[-1]
        granted(ledger, f"0.{chance.randint(1, 9)}", policies=[file])
    else:
        for open_one in views.open_reservations(ledger):
            end = chance.choice(("settle", "void", "nothing"))
            if end == "settle":
                ledger.settle(open_one.reservation)
            elif end == "void":
                ledger.void(open_one.reservation, reason="test")


def run_deeds(ledger: Ledger, seed: int) -> None:
    """Do many things in random order and check after each."""
    chance = random.Random(seed)
    # A lifetime of 5 is promised first, and nobody passes --raise-lifetime.
    files = [basic("2", "5")]
    ledger.settle(granted(ledger, policies=files))
    for _ in range(150):
        try:
            _act(ledger, chance, files)
        except (BudgetRefused, PolicyChanged, PolicyNotApplied):
            # Whoever was refused undoes the edit, or tries on.
            files[:] = files[:1] if chance.random() < _UNDONE else files
            continue
        assert spent(ledger) <= _LIFETIME


@pytest.mark.parametrize("seed", spread(range(6), 4))
def test_no_sequence_of_edits_and_charges_passes_the_lifetime(ledger, seed):
    """What all terms admitted stays within the lifetime that was promised first."""
    run_deeds(ledger, seed)
    opened = [v.opened["epsilon"] for v in views.terms(ledger, "a") if v.charged]
    assert sum(map(Fraction, opened)) <= _LIFETIME
    audit(ledger)


def _reset_in_place(ledger: Ledger, given: Policy, **_: object) -> None:
    """Apply each basic as a term that no sum counts: a known-bad `apply`."""
    author = ledger.author()
    decision = Decision(author._replace(command="x"))
    with ledger.database.transaction() as transaction:
        rows = load_rows(
            transaction, Scope(datasets=[given.dataset], policies=[given]), ledger.terms
        )
        write_term(decision, open_term(rows, given, author, "x"))
        transaction.write(decision)


def test_an_apply_that_resets_usage_in_place_is_caught(ledger, monkeypatch):
    """Control: a known-bad `apply` passes the lifetime."""
    monkeypatch.setattr(Ledger, "apply", _reset_in_place)
    with pytest.raises(AssertionError):
        run_deeds(ledger, 0)
    assert spent(ledger) > _LIFETIME
