"""One part of a divided dataset, and what is read with every part."""

from __future__ import annotations

import pytest

from dpflow import Gaussian, PureDP
from dpflow.exceptions import ConfigurationError, LedgerCorrupt
from dpflow.ledger import Ledger, views
from dpflow.ledger.decision.by_hand import Amend
from dpflow.ledger.records import AccountView
from dpflow.ledger.views.accounts import (
    book_accounts,
    gates_of_book,
    load_book,
    partition_of,
    standing_gates,
)
from tests.ledger.support import Place, edit, granted, make_policy

pytestmark = pytest.mark.storages("sqlite", "postgres")

DIVIDED = make_policy(partition="{by: region}", flows="{daily: {epsilon: 0.8}}")
REGIONS = ("east", "north", "south", "west")
#: A dataset with an account of its own, a reserved share and all kinds of gates.
KEPT = make_policy(
    "k",
    budget="{epsilon: 3, delta: 1e-6}",
    filter="gdp",
    odometer="{theorem: rdp, delta: 1e-6}",
    flows="{weekly: {epsilon: 2, delta: 1e-7, halt_at_epsilon: 3, reserved: true}}",
)


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


def of_part(ledger: Ledger, part: str) -> dict[str, AccountView]:
    """Return the accounts that are read with a part."""
    return {view.id: view for view in book_accounts(ledger, "a", part)["a"].accounts}


def test_a_part_is_what_it_is_among_all(divided: Ledger) -> None:
    """With what is of no part; a part without charges has no account."""
    whole = {view.id: view for view in views.accounts(divided, "a")}
    assert book_accounts(divided, "a")["a"].parts == len(REGIONS)
    for region in REGIONS:
        wanted = {n: v for n, v in whole.items() if partition_of(n) in {"", region}}
        assert of_part(divided, region) == wanted
    with pytest.raises(ConfigurationError, match="Its whole budget remains"):
        of_part(divided, "center")


def test_what_is_overdrawn_is_read_with_every_part(divided: Ledger) -> None:
    """It breaks the guarantee of all parts, so that no part may hide it."""
    assert not views.terms(divided, "a")[-1].overdrawn
    name = granted(divided, policies=[DIVIDED], partitions=("east",), flow="daily")
    divided.ask(Amend(charge=name, cost=PureDP(epsilon=5), reason="it cost more"))
    states = {name: view.state for name, view in of_part(divided, "west").items()}
    assert states["a#1/partition/east"] == "overdrawn"
    assert "a#1/partition/north" not in states
    assert views.terms(divided, "a")[-1].overdrawn


def test_gates_by_name_are_those_of_the_whole(ledger: Ledger) -> None:
    """An account that is read alone stands as it does among all."""
    step = Gaussian(sensitivity=1, sigma=40)
    ledger.settle(granted(ledger, step, policies=[KEPT], flow="weekly"))
    with ledger.storage.read() as reading:
        whole = {each.id: each for each in gates_of_book(load_book(reading, "k"), "k")}
    for name, gate in whole.items():
        assert standing_gates(ledger, "k", [name]) == {name: gate}


def test_a_part_is_checked_against_the_journal(divided: Ledger, path: Place) -> None:
    """A part that was edited is refused; the others are what they are."""
    edit(
        path,
        "UPDATE entry SET rows = replace(rows, '[', '[ ') "
        "WHERE kind = 'settle' AND rows LIKE '%partition/east%'",
    )
    assert of_part(divided, "west")
    with pytest.raises(LedgerCorrupt):
        of_part(divided, "east")
    with pytest.raises(LedgerCorrupt):
        book_accounts(divided, "a")
