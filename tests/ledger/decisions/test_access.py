"""Which flows may use a dataset, and their shares: changed within a term."""

from __future__ import annotations

import uuid
from contextlib import suppress
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpflow.exceptions import (
    BudgetRefused,
    PolicyChanged,
)
from dpflow.ledger import views
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.decisions.gates import gates_text
from dpflow.ledger.decisions.pinned_rules import gate_in
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.opening import create_ledger
from dpflow.ledger.tables.errors import MEMORY
from dpflow.ledger.tables.sqlite import forget_memory
from dpflow.policy import Policy
from dpflow.show.guarantees import odds_in_words, term_guarantee
from tests.ledger.support import (
    charged,
    make_policy,
    terms_of,
)
from tests.sizes import scaled

pytestmark = pytest.mark.quick


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


@settings(max_examples=scaled(60, push=10))
@given(st.lists(ACTS, min_size=4, max_size=14))
def test_access_never_changes_the_guarantee_of_the_dataset(acts):
    """Every gate of the dataset stays, and no tally forgets a charge."""
    url = f"{MEMORY}{uuid.uuid4().hex}"
    ledger = create_ledger(url)
    now = make_policy(flows="{w: {}}", other_flows="refuse")
    used = {**dict.fromkeys(NAMED, Fraction(0)), "w": Fraction("0.01")}
    charged(ledger, "0.01", policies=[now], flow="w")
    words_and_gates = promised(ledger, now)
    for act, what, more in acts:
        if act == "step":
            with suppress(BudgetRefused):
                charged(ledger, f"{more / 100}", policies=[now], flow=what)
                used[what] += Fraction(more, 100)
            continue
        shares = zip(NAMED, what, strict=False)
        flows = ", ".join(f"{name}: {share}" for name, share in shares if share)
        file = make_policy(flows=f"{{{flows}}}", other_flows=more)
        with suppress(PolicyChanged):
            action = ledger.apply(file, reason="a second report").action
            assert action in ("access", "nothing", "tighten")
            now = file
        assert promised(ledger, now) == words_and_gates
        in_ledger, in_file = terms_of(ledger)[-1]["gates"], gates_text(now.to_pinned())
        assert limits(in_ledger, now) == limits(in_file, now)
        for view in views.accounts(ledger, "a"):
            if view.kind == "flow":
                assert Fraction(view.spent["epsilon"]) == used[view.name]
    assert verify(ledger).fine
    forget_memory(url)


def promised(ledger: Ledger, file: Policy) -> tuple[list[str], dict[str, Any]]:
    """Return what is promised of the dataset, in words and as gates."""
    pinned = {**file.to_pinned(), "flows": {}, "other_flows": "allow"}
    terms = views.terms(ledger, "a")
    words = [term_guarantee(pinned, terms), odds_in_words(pinned, terms)]
    gates = terms_of(ledger)[-1]["gates"].items()
    return words, {k: g for k, g in gates if k.partition("/")[0] not in FLOW}


def limits(gates: Any, file: Policy) -> dict[str, Any]:
    """Return the shares of flows that may run, by the gates of a ledger or a file."""
    open_flows = NAMED if file.other_flows != "refuse" else file.flows
    return {flow: gate_in(gates, "flow", flow) for flow in open_flows}
