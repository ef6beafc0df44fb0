"""However policies are edited and applied, all terms together stay in the lifetime."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from dpflow import PureDP
from dpflow.exceptions import BudgetRefused, PolicyChanged, PolicyNotApplied
from dpflow.ledger import views
from dpflow.ledger.decisions.decision import Decision
from dpflow.ledger.decisions.terms import FIRST, open_term, write_term
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.tables.loading import Scope, load_rows
from dpflow.policy import Policy
from dpflow.show.guarantees import term_guarantee, terms_in_words
from tests.ledger.support import (
    UNIT,
    audit,
    body,
    entries,
    granted,
    make_policy,
    refused,
    repair,
    terms_of,
)
from tests.sizes import spread

NEW = {"new_term": True, "reason": "a new year"}
RAISED = {"new_term": True, "reason": "a new year", "raise_lifetime": True}


def policy(epsilon: str, lifetime: str | None = None, **fields: str) -> Policy:
    """Make a policy of basic composition."""
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
def test_a_term_that_was_overdrawn_does_not_count_as_its_budget(
    ledger: Ledger, while_frozen: bool
) -> None:
    """No sum bounds what it lost; who opens a further term has to say so."""
    before = policy("1", "2")
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
    for file in (before, policy("1", "7")):
        with pytest.raises(PolicyNotApplied, match="in term 1 than its budget"):
            ledger.apply(file, **NEW)
    assert len(terms_of(ledger)) == 1
    assert "in term 1" in ledger.propose(policy("1", "7")).obstacle
    words = terms_in_words(ledger.apply(before, **RAISED).terms)
    assert "1 (epsilon = 1, delta = 0) for customer (add-or-remove), overdrawn" in words
    granted(ledger, policies=[before])


def test_the_terms_add_up_to_the_lifetime_exactly(ledger: Ledger) -> None:
    """Equality fits; the least more does not, and the error holds the numbers."""
    granted(ledger)
    with pytest.raises(PolicyNotApplied) as caught:
        ledger.apply(policy("2.000000001", "3"), **NEW)
    assert caught.value.lifetime == {"epsilon": "3", "delta": "0"}
    assert caught.value.total == {"epsilon": "3.000000001", "delta": "0"}
    assert ledger.apply(policy("2", "3"), **NEW).term == 2


def test_a_lifetime_below_what_was_opened_is_no_promise(ledger: Ledger) -> None:
    """It would be broken already; later it can be lowered to the sum, not below."""
    granted(ledger)
    with pytest.raises(PolicyNotApplied, match=r"its lifetime .*Write `lifetime"):
        ledger.apply(policy("0.2", "0.9"))
    for lifetime in ("5", "1"):
        done = ledger.apply(policy("0.2", lifetime))
        assert done.action == "tighten"


def test_the_lifetime_is_raised_only_by_saying_so(ledger: Ledger) -> None:
    """With a new term, a reason, and a flag; no term opens without a lifetime."""
    granted(ledger, policies=[policy("1", "2")])
    longer = policy("1.5", "2.5")
    with pytest.raises(PolicyChanged, match=r"lifetime\.epsilon: ledger 2, file 2\.5"):
        ledger.apply(longer, raise_lifetime=True)
    with pytest.raises(PolicyNotApplied, match="--raise-lifetime"):
        ledger.apply(longer, **NEW)
    done = ledger.apply(longer, **RAISED)
    assert (done.term, done.terms[-1].lifetime) == (2, {"epsilon": "2.5", "delta": "0"})
    changes = body(ledger, "open")["changes"]
    assert "lifetime.epsilon: ledger 2, file 2.5" in changes
    granted(ledger, policies=[longer])
    with pytest.raises(PolicyChanged, match="lifetime"):
        ledger.apply(policy("1"))
    with pytest.raises(PolicyNotApplied, match="no lifetime caps"):
        ledger.apply(policy("1"), **RAISED)


# In words


def test_no_step_replaces_what_a_person_applied(ledger: Ledger) -> None:
    """Whatever the reason is: also that of terms which steps open."""
    granted(ledger, policies=[policy("1", "3")])
    ledger.apply(policy("2", "3"), new_term=True, reason=FIRST)
    with pytest.raises(PolicyChanged):
        granted(ledger, policies=[policy("3", "3")])
    audit(ledger)


def test_no_step_opens_a_term_after_a_repair_charged_an_older_one(ledger: Ledger):
    """The first term was uncharged when its file was replaced; its charge was lost."""
    for epsilon in ("1", "2"):
        refused(ledger, "9", policies=[policy(epsilon, "3")])
    repair(ledger, {"a#1": (UNIT, 0)})
    with pytest.raises(PolicyChanged):
        granted(ledger, policies=[policy("2.5", "3")])
    with pytest.raises(PolicyNotApplied, match="above its lifetime"):
        ledger.apply(policy("2.5", "3"))
    for _ in range(2):
        with pytest.raises(PolicyNotApplied, match="since a step opened term 2"):
            granted(ledger, policies=[policy("2", "3")])
    ledger.apply(policy("2", "3"), new_term=True, reason="the rest")
    granted(ledger, policies=[policy("2", "3")])
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
            files.append(policy(epsilon, cap))
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
    """Do many things in random order and check after each."""
    chance = random.Random(seed)
    # A lifetime of 5 is promised first, and nobody passes --raise-lifetime.
    files = [policy("2", "5")]
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
def test_no_sequence_of_edits_and_charges_passes_the_lifetime(
    ledger: Ledger, seed: int
) -> None:
    """What all terms admitted stays within the lifetime that was promised first."""
    run_deeds(ledger, seed)
    opened = [v.opened["epsilon"] for v in views.terms(ledger, "a") if v.charged]
    assert sum(map(Fraction, opened)) <= _LIFETIME
    audit(ledger)


def _reset_in_place(ledger: Ledger, given: Policy, **_: object) -> None:
    """Apply each policy as a term that no sum counts: a known-bad `apply`."""
    author = ledger.author()
    decision = Decision(author, "x")
    with ledger.database.transaction() as transaction:
        rows = load_rows(
            transaction,
            Scope(datasets=[given.dataset], policies=[given]),
            ledger.terms,
        )
        write_term(decision, open_term(rows, given, author, "x"))
        transaction.write(decision)


def test_an_apply_that_resets_usage_in_place_is_caught(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: a known-bad `apply` passes the lifetime."""
    monkeypatch.setattr(Ledger, "apply", _reset_in_place)
    with pytest.raises(AssertionError):
        run_deeds(ledger, 0)
    assert spent(ledger) > _LIFETIME
