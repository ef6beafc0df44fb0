"""However policies are edited and applied, all terms together stay in the lifetime."""

from __future__ import annotations

import random
from fractions import Fraction
from itertools import accumulate
from typing import Any

import pytest

from dpflow import Gaussian
from dpflow.exceptions import BudgetRefused, PolicyChanged, PolicyNotApplied
from dpflow.ledger import views
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.decisions.decision import Decision
from dpflow.ledger.decisions.terms import open_term, view_policy, write_term
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.tables.loading import Scope, load_rows
from dpflow.policy import Policy
from dpflow.policy.lifetime import Opened
from dpflow.show.guarantees import terms_in_words
from tests.ledger.support import (
    UNIT,
    audit,
    entries,
    granted,
    make_ledger,
    make_policy,
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


#: Filter, lifetime and what five terms add up to.
FIVE = ("15", "5e-6")
TOTALS = [
    ("gdp", ("7.493", "1e-6"), "epsilon = 7.493, delta = 1e-06"),
    ("zcdp", FIVE, "epsilon = 6.968, delta = 5e-06"),
    ("{theorem: rdp, order: 9}", FIVE, "epsilon = 9.461, delta = 5e-06"),
    *(
        (filter_, FIVE, "epsilon = 15, delta = 5e-06")
        for filter_ in ("basic", "rdp", "auto", "residue", "whitehouse")
    ),
    ("{theorem: rdp, orders: [8, 9]}", FIVE, "epsilon = 15, delta = 5e-06"),
]


@pytest.mark.parametrize(("filter_", "lifetime", "total"), TOTALS)
def test_each_filter_adds_terms_up_in_its_own_way(filter_, lifetime, total):
    """In its tally where constants are declared and steady, else by budgets.

    Deltas of Gaussian terms need not add up.
    """
    file = policy(*lifetime, filter=filter_)
    terms = [view_policy(file, number) for number in range(1, 6)]
    assert f"add up to ({total})" in terms_in_words(terms)


def test_settled_usage_in_place_of_thresholds_is_caught(ledger, monkeypatch):
    """Control: usage without held amounts admits any number of running terms."""
    file = policy("4.288")
    granted(ledger, YEAR, policies=[file])
    ledger.apply(file, **NEW)
    granted(ledger, YEAR, policies=[file])
    with pytest.raises(PolicyNotApplied, match="above its lifetime"):
        ledger.apply(file, **NEW)
    none = {"epsilon": "0", "delta": "0"}, None
    kind = "dpflow.ledger.decisions.lifetimes.Opened"
    monkeypatch.setattr(kind, lambda unit, relation, *_: Opened(unit, relation, *none))
    assert ledger.apply(file, **NEW).term == 3


# Terms that another program wrote


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
    granted(ledger, YEAR, policies=[policy()])
    checked = "dpflow.ledger.decisions.policy_changes.lifetime_error"
    with monkeypatch.context() as patch:
        patch.setattr(checked, lambda *_, **__: None)
        ledger.apply(policy(**other), **NEW)
    granted(ledger, YEAR, policies=[policy(**other)])
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


def basic(epsilon: str, lifetime: str | None = None, **fields: str) -> Policy:
    """Make a basic of basic composition."""
    if lifetime is not None:
        fields["lifetime"] = f"{{epsilon: {lifetime}}}"
    return make_policy(budget=f"{{epsilon: {epsilon}}}", **fields)


def most_spent(ledger: Ledger) -> Fraction:
    """Return the most epsilon that was admitted and not voided, by the journal."""
    changes = [
        sum(held[0] for _, held in entry.postings.values())
        for entry in entries(ledger)
        if entry.kind in ("reserve", "void")
    ]
    return Fraction(max(accumulate(changes)), UNIT)


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
        wish = NEW if deed == "new term" else {}
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
    """Do many things in random order."""
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


@pytest.mark.parametrize("seed", spread(range(6), 2))
def test_no_sequence_of_edits_and_charges_passes_the_lifetime(ledger, seed):
    """What all terms admitted stays within the lifetime that was promised first."""
    run_deeds(ledger, seed)
    assert most_spent(ledger) <= _LIFETIME
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
    run_deeds(ledger, 0)
    assert most_spent(ledger) > _LIFETIME
