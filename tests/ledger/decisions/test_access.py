"""Which flows may use a dataset, and their shares: changed within a term."""

from __future__ import annotations

import uuid
from contextlib import suppress
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpflow import PureDP
from dpflow.exceptions import (
    BudgetRefused,
    PolicyChanged,
    PolicyNotApplied,
)
from dpflow.ledger import views
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.decisions.gates import gates_text
from dpflow.ledger.decisions.pinned_rules import gate_in
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.opening import create_ledger
from dpflow.ledger.tables.errors import MEMORY
from dpflow.ledger.tables.sqlite import forget_memory
from dpflow.ledger.views.spending import spending
from dpflow.policy import Policy
from dpflow.show.guarantees import odds_in_words, term_guarantee
from tests.ledger.support import (
    charged,
    granted,
    make_policy,
)

pytestmark = pytest.mark.quick

WHY = {"reason": "a second report"}


def policy(
    flows: str = "{weekly: {}}", others: str = "refuse", **fields: str
) -> Policy:
    """Make a policy of basic composition with epsilon 1."""
    return make_policy(flows=flows, other_flows=others, **fields)


@pytest.fixture
def reported(ledger: Ledger) -> Ledger:
    """Give a ledger in which the weekly report was charged."""
    charged(ledger, "0.1", policies=[policy()], flow="weekly")
    return ledger


def test_a_second_report_needs_a_reason_and_no_term(reported):
    """What is guaranteed is the same, and the journal says who let it in, and why."""
    with pytest.raises(BudgetRefused, match="second"):
        charged(reported, "0.1", policies=[policy()], flow="second")
    more = policy("{weekly: {}, second: {epsilon: 0.3}}")
    before = reported.propose(more)
    assert (before.action, before.verdict) == ("access", "access")
    with pytest.raises(PolicyNotApplied, match="needs a reason"):
        reported.apply(more)
    applied = reported.apply(more, **WHY)
    assert (applied.action, applied.term) == ("access", 1)
    assert applied.terms == before.terms
    charged(reported, "0.3", policies=[more], flow="second")
    with pytest.raises(BudgetRefused):
        charged(reported, "0.1", policies=[more], flow="second")
    assert verify(reported).fine


def test_unnamed_flows_have_a_share_each(reported):
    """The first is stopped at its limit, the second runs, steps outside do not."""
    each = policy(others="{share_each: 5%}")
    assert reported.apply(each, **WHY).action == "access"
    charged(reported, "0.05", policies=[each], flow="one")
    with pytest.raises(BudgetRefused) as caught:
        charged(reported, "0.001", policies=[each], flow="one")
    assert "one" in str(caught.value)
    charged(reported, "0.05", policies=[each], flow="two")
    with pytest.raises(BudgetRefused):
        charged(reported, "0.001", policies=[each])
    more = policy(others="{share_each: 6%}")
    assert reported.apply(more, **WHY).action == "access"
    charged(reported, "0.01", policies=[more], flow="one")
    less = policy(others="{share_each: 1%}")
    closed = reported.apply(less, **WHY).closed
    assert closed == ("a#1/flow/one", "a#1/flow/two")
    assert verify(reported).fine


def test_an_ended_share_leaves_its_charges_and_views_whole(reported):
    """They end, are corrected and seen as before; its account admits nothing."""
    each, named = policy(others="{share_each: 50%}"), policy("{one: {}}", "allow")
    reported.apply(each, **WHY)
    ids = [granted(reported, "0.01", policies=[each], flow="one") for _ in range(3)]
    assert reported.apply(named, **WHY).action == "access"
    reported.void(ids[0], reason="not started")
    reported.settle(ids[1])
    for name in ids[1:]:
        (posted,) = reported.amend(name, PureDP(epsilon="0.03"), reason="more noise")
        assert (posted.account, posted.amount["epsilon"]) == ("a#1", "0.02")
    charged(reported, "0.01", policies=[named], flow="one")
    assert [view.id for view in views.accounts(reported, "a")] == ["a#1"]
    spent, _ = spending(reported, "a", ("flow",), term=1)
    assert {row.group: row.amount["epsilon"] for row in spent} == {
        ("weekly",): "0.1",
        ("one",): "0.07",
    }
    assert verify(reported).fine


def test_a_share_may_not_begin_after_charges_that_it_did_not_see(reported):
    """That needs a term, in which every tally begins at 0."""
    share = policy("{weekly: {share: 50%}}")
    with pytest.raises(PolicyChanged, match="would forget"):
        reported.apply(share, **WHY)
    with pytest.raises(PolicyChanged, match="would forget"):
        reported.apply(policy("{other: {}}", "{share_each: 5%}"), **WHY)
    assert reported.propose(policy("{}", "allow")).action == "access"


def test_where_a_share_is_reserved_a_new_flow_needs_a_term(ledger):
    """The rest of the others would be used by one more."""
    kept = "weekly: {epsilon: 0.5, reserved: true}"
    charged(ledger, "0.1", policies=[policy(f"{{{kept}}}")], flow="weekly")
    with pytest.raises(PolicyChanged, match="looser"):
        ledger.apply(policy(f"{{{kept}, second: {{}}}}"), **WHY)


def test_access_and_a_tighter_budget_are_two_decisions(reported):
    """Words about the guarantee are not those about access."""
    both = policy("{weekly: {}, second: {}}", budget="{epsilon: 0.9}")
    assert reported.propose(both).verdict == "tighter"
    with pytest.raises(PolicyChanged, match="one after the other"):
        reported.apply(both, **WHY)
    assert reported.apply(policy(budget="{epsilon: 0.9}")).action == "tighten"
    assert reported.apply(both, **WHY).action == "access"
    assert verify(reported).fine


def test_a_share_in_percent_shrinks_with_the_budget(ledger):
    """It is a part of the threshold in force."""
    half = "{weekly: {share: 50%}}"
    charged(ledger, "0.4", policies=[policy(half)], flow="weekly")
    less = policy(half, budget="{epsilon: 0.8}")
    assert ledger.apply(less).action == "tighten"
    with pytest.raises(BudgetRefused):
        charged(ledger, "0.01", policies=[less], flow="weekly")
    assert verify(ledger).fine


def test_a_person_pins_the_first_copy(ledger):
    """With `pin: apply` no step does, nor does one replace an uncharged copy."""
    by_hand = policy(pin="apply")
    with pytest.raises(PolicyNotApplied, match="dpflow policy apply a"):
        charged(ledger, "0.1", policies=[by_hand], flow="weekly")
    with pytest.raises(BudgetRefused):
        charged(ledger, "5", policies=[policy()], flow="weekly")
    with pytest.raises(PolicyChanged):
        charged(ledger, "0.1", policies=[policy("{weekly: {}, b: {}}", pin="apply")])
    assert ledger.apply(by_hand).action in ("open", "nothing")
    charged(ledger, "0.1", policies=[by_hand], flow="weekly")


@pytest.mark.parametrize(
    "before",
    [("{w: {share: 10%}}", "allow"), ("{}", "{share_each: 10%}")],
    ids=["a share", "a share of each"],
)
def test_a_share_that_ended_is_no_limit(ledger, before):
    """Not for its next step, nor for the file that names the flow without one."""
    share, ended, named = (
        policy(*before),
        policy("{}", "allow"),
        policy("{w: {}}", "allow"),
    )
    charged(ledger, "0.1", policies=[share], flow="w")
    with pytest.raises(BudgetRefused):
        charged(ledger, "0.01", policies=[share], flow="w")
    assert ledger.apply(ended, **WHY).action == "access"
    charged(ledger, "0.2", policies=[ended], flow="w")
    assert ledger.apply(named, **WHY).action in ("access", "tighten")
    charged(ledger, "0.7", policies=[named], flow="w")
    assert [view.id for view in views.accounts(ledger, "a")] == ["a#1"]
    assert verify(ledger).fine


SHARES = st.sampled_from(
    [None, "{}", "{epsilon: 0.3}", "{epsilon: 0.6}", "{share: 20%}", "{share: 50%}"]
)
OTHERS = st.sampled_from(["allow", "refuse", "{share_each: 5%}", "{share_each: 30%}"])
FLOW = ("flow", "odometer")
NAMED = ("w", "x", "y")
ACTS = st.one_of(
    st.tuples(st.just("edit"), st.tuples(SHARES, SHARES), OTHERS),
    st.tuples(st.just("step"), st.sampled_from(NAMED), st.integers(1, 12)),
)


@settings(deadline=None, max_examples=60)
@given(st.lists(ACTS, min_size=4, max_size=14))
def test_access_never_changes_the_guarantee_of_the_dataset(acts):
    """Every gate of the dataset stays, and no tally forgets a charge."""
    url = f"{MEMORY}{uuid.uuid4().hex}"
    made = create_ledger(url)
    now, used = policy("{w: {}}"), dict.fromkeys(NAMED, Fraction(0))
    charged(made, "0.01", policies=[now], flow="w")
    used["w"] += Fraction("0.01")
    said, gates = promised(made, now)
    for act, what, more in acts:
        if act == "step":
            with suppress(BudgetRefused):
                charged(made, f"{more / 100}", policies=[now], flow=what)
                used[what] += Fraction(more, 100)
            continue
        shares = zip(NAMED, what, strict=False)
        flows = ", ".join(f"{name}: {share}" for name, share in shares if share)
        file = policy(f"{{{flows}}}", more)
        with suppress(PolicyChanged):
            assert made.apply(file, **WHY).action in ("access", "nothing", "tighten")
            now = file
        assert promised(made, now) == (said, gates)
        assert limits(made, now) == limits(None, now)
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
    gates = term.fields["gates"].items()
    return words, {k: g for k, g in gates if k.partition("/")[0] not in FLOW}


def limits(made: Ledger | None, file: Policy) -> dict[str, Any]:
    """Return the shares of flows that may run, as a ledger or a file has them."""
    gates = gates_text(file.to_pinned())
    if made is not None:
        with views.open_reading(made) as reading:
            term = reading.newest("a")
        assert term is not None
        gates = term.fields["gates"]
    open_flows = NAMED if file.other_flows != "refuse" else file.flows
    return {flow: gate_in(gates, "flow", flow) for flow in open_flows}


def share_tallies(made: Ledger) -> dict[str, Fraction]:
    """Return what the accounts of shares hold, by flow."""
    shares = (view for view in views.accounts(made, "a") if view.kind == "flow")
    return {view.name: Fraction(view.spent["epsilon"]) for view in shares}
