"""Access: flows and shares change in a term, and the dataset's guarantee stays."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import suppress
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpflow.exceptions import (
    BudgetRefused,
    PolicyChanged,
    PolicyNotApplied,
)
from dpflow.ledger import views
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.opening import create_ledger
from dpflow.ledger.tables.errors import MEMORY
from dpflow.ledger.tables.sqlite import forget_memory
from dpflow.policy import Policy
from dpflow.show.guarantees import odds_in_words, term_guarantee
from tests.ledger.copies import charged
from tests.ledger.support import make_policy

WHY = {"reason": "a second report"}


def policy(
    flows: str = "{weekly: {}}", others: str = "refuse", **fields: str
) -> Policy:
    """Make a policy of basic composition with epsilon 1."""
    return make_policy(flows=flows, other_flows=others, **fields)


def memory() -> tuple[Ledger, str]:
    """Make a ledger in memory."""
    url = f"{MEMORY}{uuid.uuid4().hex}"
    return create_ledger(url), url


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    """Give a ledger in which the weekly report was charged."""
    made, url = memory()
    charged(made, "0.1", policies=[policy()], flow="weekly")
    yield made
    forget_memory(url)


def test_a_second_report_needs_a_reason_and_no_term(ledger: Ledger) -> None:
    """What is guaranteed is the same, and the journal says who let it in, and why."""
    with pytest.raises(BudgetRefused, match="second"):
        charged(ledger, "0.1", policies=[policy()], flow="second")
    more = policy("{weekly: {}, second: {epsilon: 0.3}}")
    before = ledger.propose(more)
    assert (before.action, before.verdict) == ("access", "access")
    with pytest.raises(PolicyNotApplied, match="needs a reason"):
        ledger.apply(more)
    applied = ledger.apply(more, **WHY)
    assert (applied.action, applied.term) == ("access", 1)
    assert applied.terms == before.terms
    charged(ledger, "0.3", policies=[more], flow="second")
    with pytest.raises(BudgetRefused):
        charged(ledger, "0.1", policies=[more], flow="second")
    assert verify(ledger).fine


def test_unnamed_flows_have_a_share_each(ledger: Ledger) -> None:
    """The first is stopped at its limit, the second runs, steps outside do not."""
    each = policy(others="{share_each: 5%}")
    assert ledger.apply(each, **WHY).action == "access"
    charged(ledger, "0.05", policies=[each], flow="one")
    with pytest.raises(BudgetRefused) as caught:
        charged(ledger, "0.001", policies=[each], flow="one")
    assert "one" in str(caught.value)
    charged(ledger, "0.05", policies=[each], flow="two")
    with pytest.raises(BudgetRefused):
        charged(ledger, "0.001", policies=[each])
    more = policy(others="{share_each: 6%}")
    assert ledger.apply(more, **WHY).action == "access"
    charged(ledger, "0.01", policies=[more], flow="one")
    less = policy(others="{share_each: 1%}")
    closed = ledger.apply(less, **WHY).closed
    assert closed == ("a#1/flow/one", "a#1/flow/two")
    assert verify(ledger).fine


def test_a_share_may_not_begin_after_charges_that_it_did_not_see(
    ledger: Ledger,
) -> None:
    """That needs a term, in which every tally begins at 0."""
    share = policy("{weekly: {share: 50%}}")
    with pytest.raises(PolicyChanged, match="would forget"):
        ledger.apply(share, **WHY)
    with pytest.raises(PolicyChanged, match="would forget"):
        ledger.apply(policy("{other: {}}", "{share_each: 5%}"), **WHY)
    assert ledger.propose(policy("{}", "allow")).action == "access"


def test_where_a_share_is_reserved_a_new_flow_needs_a_term() -> None:
    """The rest of the others would be used by one more."""
    made, url = memory()
    kept = "weekly: {epsilon: 0.5, reserved: true}"
    charged(made, "0.1", policies=[policy(f"{{{kept}}}")], flow="weekly")
    with pytest.raises(PolicyChanged, match="looser"):
        made.apply(policy(f"{{{kept}, second: {{}}}}"), **WHY)
    forget_memory(url)


def test_access_and_a_tighter_budget_are_two_decisions(ledger: Ledger) -> None:
    """Words about the guarantee are not those about access."""
    both = policy("{weekly: {}, second: {}}", budget="{epsilon: 0.9}")
    assert ledger.propose(both).verdict == "tighter"
    with pytest.raises(PolicyChanged, match="one after the other"):
        ledger.apply(both, **WHY)
    assert ledger.apply(policy(budget="{epsilon: 0.9}")).action == "tighten"
    assert ledger.apply(both, **WHY).action == "access"
    assert verify(ledger).fine


def test_a_share_in_percent_shrinks_with_the_budget() -> None:
    """It is a part of the threshold in force."""
    made, url = memory()
    half = "{weekly: {share: 50%}}"
    charged(made, "0.4", policies=[policy(half)], flow="weekly")
    less = policy(half, budget="{epsilon: 0.8}")
    assert made.apply(less).action == "tighten"
    with pytest.raises(BudgetRefused):
        charged(made, "0.01", policies=[less], flow="weekly")
    assert verify(made).fine
    forget_memory(url)


def test_a_person_pins_the_first_copy() -> None:
    """With `pin: apply` no step does, nor does one replace an uncharged copy."""
    made, url = memory()
    by_hand = policy(pin="apply")
    with pytest.raises(PolicyNotApplied, match="dpflow policy apply a"):
        charged(made, "0.1", policies=[by_hand], flow="weekly")
    with pytest.raises(BudgetRefused):
        charged(made, "5", policies=[policy()], flow="weekly")
    with pytest.raises(PolicyChanged):
        charged(made, "0.1", policies=[policy("{weekly: {}, b: {}}", pin="apply")])
    assert made.apply(by_hand).action in ("open", "nothing")
    charged(made, "0.1", policies=[by_hand], flow="weekly")
    forget_memory(url)


SHARES = st.sampled_from(
    [None, "{}", "{epsilon: 0.3}", "{epsilon: 0.6}", "{share: 20%}", "{share: 50%}"]
)
OTHERS = st.sampled_from(["allow", "refuse", "{share_each: 5%}", "{share_each: 30%}"])
FLOW = ("flow", "odometer")
FLOWS = ("w", "x", "y")
ACTS = st.one_of(
    st.tuples(st.just("edit"), st.tuples(SHARES, SHARES), OTHERS),
    st.tuples(st.just("step"), st.sampled_from(FLOWS), st.integers(1, 12)),
)


@settings(deadline=None, max_examples=60)
@given(st.lists(ACTS, min_size=4, max_size=14))
def test_access_never_changes_the_guarantee_of_the_dataset(acts: list[Any]) -> None:
    """Every gate of the dataset stays, and no tally forgets a charge."""
    made, url = memory()
    now, used = policy("{w: {}}"), dict.fromkeys(FLOWS, Fraction(0))
    charged(made, "0.01", policies=[now], flow="w")
    used["w"] += Fraction("0.01")
    said, gates = promised(made, now)
    for act, what, more in acts:
        if act == "step":
            with suppress(BudgetRefused):
                charged(made, f"{more / 100}", policies=[now], flow=what)
                used[what] += Fraction(more, 100)
            continue
        shares = zip(FLOWS, what, strict=False)
        flows = ", ".join(f"{name}: {share}" for name, share in shares if share)
        file = policy(f"{{{flows}}}", more)
        with suppress(PolicyChanged):
            assert made.apply(file, **WHY).action in ("access", "nothing", "tighten")
            now = file
        assert promised(made, now) == (said, gates)
        for name, tally in share_tallies(made).items():
            assert tally == used[name]
    assert verify(made).fine
    forget_memory(url)


def promised(made: Ledger, file: Policy) -> tuple[list[str], dict[str, Any]]:
    """Return what is promised of the dataset, in words and as gates."""
    pinned = {**file.to_pinned(), "flows": {}, "other_flows": "allow"}
    terms = views.terms(made, "a")
    words = [term_guarantee(pinned, terms), odds_in_words(pinned, terms)]
    with views.open_reading(made) as reading:
        term = reading.newest("a")
    assert term is not None
    gates = term.facts["gates"].items()
    return words, {k: g for k, g in gates if k.partition("/")[0] not in FLOW}


def share_tallies(made: Ledger) -> dict[str, Fraction]:
    """Return what the accounts of shares hold, by flow."""
    shares = (view for view in views.accounts(made, "a") if view.kind == "flow")
    return {view.name: Fraction(view.spent["epsilon"]) for view in shares}
