"""One part of a divided dataset, and what is read with every part."""

from __future__ import annotations

import pytest

from dpflow import PureDP
from dpflow.exceptions import ConfigurationError
from dpflow.ledger import Ledger, views
from dpflow.ledger.decision.office import Amend
from dpflow.ledger.views.accounts import Standing, standings
from dpflow.policy import PolicySet
from tests.ledger.support import granted, make_policy

pytestmark = pytest.mark.storages("sqlite", "postgres")

DIVIDED = make_policy(partition="{by: region}", flows="{daily: {epsilon: 0.8}}")
REGIONS = ("east", "north", "south", "west")


@pytest.fixture
def divided(ledger: Ledger) -> Ledger:
    """Return a ledger that charged each region, the first ones most."""
    for number, region in enumerate(REGIONS):
        cost = f"0.{len(REGIONS) - number}"
        name = granted(
            ledger, cost, policies=[DIVIDED], partitions=(region,), flow="daily"
        )
        ledger.settle(name)
    return ledger


def of_part(ledger: Ledger, part: str | None = None) -> Standing:
    """Return the standing of a part, or of the whole dataset."""
    (standing,) = standings(ledger, PolicySet({}), "a", part)
    return standing


def test_a_part_has_the_account_that_it_has_among_all(divided: Ledger) -> None:
    """With the accounts of no part; a part without charges has no account."""
    whole = of_part(divided)
    assert whole.parts == len(REGIONS)
    for region in REGIONS:
        wanted = [v for v in whole.accounts if v.gate.partition in ("", region)]
        assert list(of_part(divided, region).accounts) == wanted
    with pytest.raises(ConfigurationError, match="Its whole budget remains"):
        of_part(divided, "center")


def test_an_overdrawn_account_is_read_with_every_part(divided: Ledger) -> None:
    """It breaks the guarantee of all parts, so that no part may hide it."""
    assert not views.terms(divided, "a")[-1].overdrawn
    name = granted(divided, policies=[DIVIDED], partitions=("east",), flow="daily")
    divided.ask(Amend(charge=name, cost=PureDP(epsilon=5), reason="it cost more"))
    states = {view.id: view.state for view in of_part(divided, "west").accounts}
    assert states["a#1/partition/east"] == "overdrawn"
    assert "a#1/partition/north" not in states
    assert views.terms(divided, "a")[-1].overdrawn
