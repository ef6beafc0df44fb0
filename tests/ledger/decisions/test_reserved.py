"""Reserved shares: all other charges together have the rest of the budget."""

from __future__ import annotations

import pytest

from dpflow import PureDP
from dpflow.exceptions import BudgetRefused, PolicyChanged
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.decisions.policy_changes import Proposal
from dpflow.ledger.ledger import Ledger
from dpflow.policy import Policy
from tests.ledger.support import granted, make_policy, sums

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


def test_without_reserved_the_others_take_the_share(ledger):
    """The negative control: a share alone is a limit."""
    plain = reserving(f"{{{REPORT}: {{epsilon: 52}}}}")
    assert fits(ledger, plain, "100", None)
    assert not fits(ledger, plain, "1", REPORT)


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
