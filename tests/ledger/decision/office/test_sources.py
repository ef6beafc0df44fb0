"""One ledger for one data source, unless a part of its budget was carved from it."""

from __future__ import annotations

import hmac
import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from dpflow.accounting.costs.notions import ApproxDP
from dpflow.exceptions import (
    BudgetRefused,
    ConfigurationError,
    PolicyNotApplied,
    UnsupportedCost,
)
from dpflow.ledger import Ledger, create_ledger, open_ledger
from dpflow.ledger.approval import Approval
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.grants import Grant, grant_from_text
from dpflow.ledger.office import apply_policy, carve
from dpflow.ledger.office_records import Wish
from dpflow.policy import Policy
from tests.ledger.support import granted, kinds, make_policy, sums, url
from tests.signing import key_file, key_of

SOURCE = "warehouse.sales.customers"
POLICY = make_policy(source=SOURCE, budget="{epsilon: 3}")
APPROVAL = Approval(principal="me")


def other(epsilon: str = "1", **fields: str) -> Policy:
    """Return the policy of the other ledger, under another dataset's name."""
    budget = f"{{epsilon: {epsilon}}}"
    given = {"source": SOURCE, "budget": budget, "lifetime": budget, **fields}
    return make_policy("b", **given)


@pytest.fixture
def first(tmp_path: Path) -> Ledger:
    """Return the ledger that governs the source, with a charge of 0.1."""
    found = create_ledger(url(tmp_path / "first.db"), witness=str(tmp_path / "w"))
    granted(found, policies=[POLICY])
    return found


@pytest.fixture
def second(tmp_path: Path, first: Ledger) -> Ledger:
    """Return another ledger, whose witness is at the same place."""
    assert first.watch.witness is not None
    return create_ledger(
        url(tmp_path / "second.db"), witness=str(tmp_path / "w"), environment="staging"
    )


def carved(first: Ledger, second: Ledger, epsilon: str = "1", **facts: str) -> Grant:
    """Carve a part of the first ledger's budget for the second one."""
    cost = ApproxDP(epsilon=epsilon, delta=0)
    given = {"taker": second.id, "because": "for the tests", **facts}
    return carve(first, POLICY, cost, **given)[0]


def apply(ledger: Ledger, policy: Policy, grant: Grant | None = None) -> None:
    """Apply a policy under a grant, as it is read from its file."""
    read = None if grant is None else grant_from_text(grant.to_text(None))
    wish = Wish(because="test", new_term=True, grant=read)
    apply_policy(ledger, policy, wish, APPROVAL)


def test_a_second_ledger_on_a_source_is_refused(first, second):
    """Whatever its dataset is called, and each time; the first goes on."""
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=first.id) as error:
            granted(second, policies=[other()])
        assert "dpflow ledger carve" in error.value.message
    assert kinds(Path(second.place), "b#1") == []
    granted(first, policies=[POLICY])


def test_applying_its_policy_does_not_help(first, second):
    """What is applied without a grant governs nothing."""
    apply(second, other())
    with pytest.raises(ConfigurationError, match="governed by ledger"):
        granted(second, policies=[other()])


def test_other_sources_and_none_are_free(first, second):
    """The control: only the same source is refused."""
    granted(second, policies=[make_policy("c", source="warehouse.sales.shops")])
    granted(second, policies=[make_policy("d")])
    granted(second, policies=[make_policy("e", source="warehouse.sales.stores")])


def test_without_a_witness_nothing_is_noticed(tmp_path, first):
    """The control: the place of the witness is what tells."""
    ledger = create_ledger(url(tmp_path / "blind.db"), witness="none")
    granted(ledger, policies=[other()])


def test_a_carved_part_is_charged_in_full_and_lets_the_other_run(first, second):
    """To the last unit, in the first's books and in the second's."""
    grant = carved(first, second)
    assert sums(Path(first.place)) == (Fraction(1), Fraction(1, 10))
    assert kinds(Path(first.place))[-1] == "prior"
    apply(second, other(), grant)
    for _ in range(10):
        granted(second, policies=[other()])
    with pytest.raises(BudgetRefused):
        granted(second, "0.01", policies=[other()])
    granted(first, "1.9", policies=[POLICY])
    with pytest.raises(BudgetRefused):
        granted(first, "0.01", policies=[POLICY])
    assert verify(first).bad == []
    assert verify(second).bad == []


def test_a_reopened_ledger_knows_its_grant(tmp_path, first, second):
    """It is in the journal, and serves the terms after it too."""
    apply(second, other("0.4", lifetime="{epsilon: 1}"), carved(first, second))
    second.settle(granted(second, policies=[other("0.4", lifetime="{epsilon: 1}")]))
    opened = open_ledger(
        url(Path(second.place)), witness=str(tmp_path / "w"), environment="staging"
    )
    looser = other("0.6", lifetime="{epsilon: 1}")
    apply(opened, looser)
    granted(opened, "0.6", policies=[looser])
    with pytest.raises(PolicyNotApplied, match="lifetime"):
        apply(opened, other("0.1", lifetime="{epsilon: 1}"))


def test_a_lifetime_above_the_grant_is_refused(first, second):
    """When the grant is applied, and when the lifetime is raised later."""
    grant = carved(first, second)
    with pytest.raises(ConfigurationError, match="lower it, or carve more"):
        apply(second, other("1.0001"), grant)
    apply(second, other(), grant)
    granted(second, policies=[other()])
    raised = other("1", lifetime="{epsilon: 5}")
    wish = Wish(because="test", new_term=True, raise_lifetime=True)
    apply_policy(second, raised, wish, APPROVAL)
    with pytest.raises(ConfigurationError, match="lower it, or carve more"):
        granted(second, policies=[raised])


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"unit": "order"}, "is for customer"),
        ({"relation": "replace-one"}, "add-or-remove"),
        ({"source": "warehouse.sales.shops"}, "is for customer"),
    ],
)
def test_another_guarantee_is_refused(first, second, fields, told):
    """Epsilon for orders buys nothing for customers."""
    with pytest.raises(ConfigurationError, match=told):
        apply(second, other(**fields), carved(first, second))


def test_a_policy_without_a_lifetime_is_refused(first, second):
    """Its terms would have no end."""
    policy = make_policy("b", source=SOURCE, budget="{epsilon: 1}")
    with pytest.raises(ConfigurationError, match="`lifetime`"):
        apply(second, policy, carved(first, second))


def test_a_grant_serves_one_ledger_only(tmp_path, first, second):
    """A third one is refused, and so is another environment."""
    grant = carved(first, second)
    third = create_ledger(url(tmp_path / "third.db"), witness=str(tmp_path / "w"))
    with pytest.raises(ConfigurationError, match="is for ledger"):
        apply(third, other(), grant)
    for_production = carved(first, second, environment="production")
    with pytest.raises(ConfigurationError, match="'production'"):
        apply(second, other(), for_production)
    with pytest.raises(ConfigurationError, match="not None"):
        apply(third, other(), replace(for_production, taker=third.id))
    apply(second, other("0.5"), carved(first, second, "0.5", environment="staging"))
    granted(second, policies=[other("0.5")])


def test_a_grant_serves_one_dataset_only(first, second):
    """It was charged once, and two datasets would each spend it."""
    grant = carved(first, second)
    apply(second, other(), grant)
    twin = make_policy(
        "c", source=SOURCE, budget="{epsilon: 1}", lifetime="{epsilon: 1}"
    )
    with pytest.raises(ConfigurationError, match=r"dataset 'b' .* dataset 'c'"):
        apply(second, twin, grant)
    with pytest.raises(ConfigurationError):
        granted(second, policies=[twin])
    assert kinds(second.storage.path, "c#1") == []
    apply(second, other(), grant)
    apply(second, twin, carved(first, second))
    granted(second, "1", policies=[twin])


def test_a_grant_serves_one_dataset_of_a_database_too(path, tmp_path):
    """Whoever asks at the same time waits; the lock is the grant's own."""
    given = {"witness": str(tmp_path / "w")}
    giver = create_ledger(url(tmp_path / "giver.db"), **given)
    taker = create_ledger(url(path), **given)
    granted(giver, policies=[POLICY])
    grant = carved(giver, taker)
    apply(taker, other(), grant)
    twin = make_policy(
        "c", source=SOURCE, budget="{epsilon: 1}", lifetime="{epsilon: 1}"
    )
    with pytest.raises(ConfigurationError, match="carve another"):
        apply(taker, twin, grant)
    granted(taker, "1", policies=[other()])
    taker.close()


def test_another_name_for_a_charged_source_has_no_budget_of_its_own(path, tmp_path):
    """A renamed dataset would start anew; a step, `apply` and a first source say no."""
    ledger = create_ledger(url(path), witness=str(tmp_path / "w"))
    granted(ledger, policies=[POLICY])
    renamed = make_policy("b", source=SOURCE, budget="{epsilon: 3}")
    with pytest.raises(ConfigurationError, match=r"'b' names the source .* of 'a'"):
        granted(ledger, policies=[renamed])
    with pytest.raises(ConfigurationError, match="of 'a'"):
        apply(ledger, renamed)
    unnamed = make_policy("b", budget="{epsilon: 3}")
    granted(ledger, policies=[unnamed])
    with pytest.raises(ConfigurationError, match="of 'a'"):
        apply_policy(ledger, renamed, Wish(), APPROVAL)
    assert kinds(path, "b#1") == ["open", "reserve"]
    # The same name goes on, and a source that nobody named is free.
    granted(ledger, policies=[POLICY])
    granted(ledger, policies=[make_policy("c", source="warehouse.visits")])
    ledger.close()


def test_an_uncharged_name_for_a_source_counts_while_it_governs(path, tmp_path):
    """Two policies that are applied before any charge would both be charged later."""
    ledger = create_ledger(url(path), witness=str(tmp_path / "w"))
    apply(ledger, POLICY)
    renamed = make_policy("b", source=SOURCE)
    with pytest.raises(ConfigurationError, match="of 'a'"):
        apply(ledger, renamed)
    apply(ledger, make_policy("a", budget="{epsilon: 3}"))
    apply(ledger, renamed)
    granted(ledger, policies=[renamed])
    with pytest.raises(ConfigurationError, match="of 'b'"):
        apply(ledger, POLICY)
    ledger.close()


def test_datasets_of_one_population_may_share_a_source(path, tmp_path):
    """The population caps what they lose together."""
    ledger = create_ledger(url(path), witness=str(tmp_path / "w"))
    for name in ("a", "b"):
        apply(ledger, make_policy(name, source=SOURCE, population="people"))
    with pytest.raises(ConfigurationError, match="of 'a'"):
        apply(ledger, make_policy("c", source=SOURCE))
    with pytest.raises(ConfigurationError, match="of 'a'"):
        apply(ledger, make_policy("c", source=SOURCE, population="others"))
    ledger.close()


def test_a_grant_that_was_changed_is_refused(first, second, tmp_path, monkeypatch):
    """By its digest; by its giver's registration; by the key, where there is one."""
    grant = carved(first, second)
    facts = json.loads(grant.to_text(None))
    with pytest.raises(ConfigurationError, match="digest does not fit"):
        grant_from_text(json.dumps({**facts, "epsilon": "2"}))
    # Whoever recomputes the digest lacks the registration.
    forged = replace(grant, epsilon="2")
    with pytest.raises(ConfigurationError, match="gave no such grant"):
        apply(second, other("2"), forged)
    signed = grant.to_text(key_of("k").sign)
    monkeypatch.setenv("DPFLOW_LEDGER_KEY", key_file(tmp_path, "k", public=True))
    assert grant_from_text(signed) == grant
    # The public key is no secret, so that nobody may sign with it.
    public, text = key_of("k").public, f"grant {grant.digest}".encode()
    by_hash = hmac.new(public, text, "sha256").hexdigest()
    for made in (None, "", 7, by_hash, by_hash * 2, key_of("l").sign(text).hex()):
        with pytest.raises(ConfigurationError, match="not signed"):
            grant_from_text(json.dumps({**facts, "signature": made}))
    monkeypatch.setenv("DPFLOW_LEDGER_KEY", key_file(tmp_path, "l"))
    with pytest.raises(ConfigurationError, match="not signed"):
        grant_from_text(signed)


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"kind": "x"}', "\ud800"])
def test_what_is_no_grant_is_refused(text):
    """And says what writes one."""
    with pytest.raises(ConfigurationError, match="dpflow ledger carve"):
        grant_from_text(text)


def test_what_does_not_fit_is_not_carved(first, second):
    """Nothing is charged then; two charges of the first are counted."""
    before = kinds(Path(first.place))
    with pytest.raises(BudgetRefused, match="has left"):
        carved(first, second, "2.91")
    assert kinds(Path(first.place)) == before
    carved(first, second, "2.9")


def test_a_theorem_without_a_price_carves_nothing(tmp_path, first, second):
    """It is never guessed."""
    policy = make_policy(
        "z", source="z", budget="{epsilon: 3, delta: 1e-6}", filter="gaussian"
    )
    cost = ApproxDP(epsilon=1, delta="1e-7")
    with pytest.raises(UnsupportedCost):
        carve(first, policy, cost, taker=second.id, because="test")
    assert kinds(Path(first.place), "z#1") == []


def test_only_the_governing_ledger_carves(first, second):
    """A part of a part would be paid for once and used twice."""
    apply(second, other(), carved(first, second))
    with pytest.raises(ConfigurationError, match="carve there"):
        carve(second, other(), ApproxDP(epsilon=1, delta=0), taker="x", because="test")
    with pytest.raises(ConfigurationError, match="this very ledger"):
        carved(first, first)
    cost = ApproxDP(epsilon=1, delta=0)
    with pytest.raises(ConfigurationError, match="names no `source`"):
        carve(first, make_policy("n"), cost, taker=second.id, because="test")


def test_only_an_officer_carves(first, second):
    """Where the policy names some."""
    policy = make_policy("o", source="o", officers="[nobody-here]")
    apply_policy(
        first, policy, Wish(), Approval(principal="nobody-here", authors=("someone",))
    )
    cost = ApproxDP(epsilon="0.1", delta=0)
    with pytest.raises(PolicyNotApplied, match="carve its budget"):
        carve(first, policy, cost, taker=second.id, because="test")


def test_naming_the_source_of_a_charged_dataset_applies_in_place(first):
    """Taking it off again needs a new term."""
    plain, named = make_policy("p"), make_policy("p", source="p")
    granted(first, policies=[plain])
    assert apply_policy(first, named, Wish(), APPROVAL).action == "tighten"
    granted(first, policies=[named])
    with pytest.raises(Exception, match="new term"):
        apply_policy(first, plain, Wish(), APPROVAL)
