"""A page of a divided dataset's parts: what it has, and what is on every page."""

from __future__ import annotations

import pytest

from dpflow import Gaussian, PureDP
from dpflow.exceptions import LedgerCorrupt
from dpflow.ledger import Ledger, views
from dpflow.ledger.model import Keys
from dpflow.ledger.office import charge_by_hand
from dpflow.ledger.views.accounts import (
    BookAccounts,
    book_accounts,
    gates_of_book,
    standing_gates,
)
from dpflow.ledger.views.parts import Parts, PartsRead, partition_of
from dpflow.ledger.views.words import parts_lines
from tests.ledger.support import Place, edit, granted, make_policy

DIVIDED = make_policy(partition="{by: region}", flows="{daily: {epsilon: 0.8}}")
REGIONS = ("east", "north", "south", "west")
#: A dataset with an account of its own, a reserved share and all kinds of gates.
KEPT = make_policy(
    "k",
    budget="{epsilon: 3, delta: 1e-6}",
    filter="gaussian",
    odometer="{theorem: renyi, delta: 1e-6}",
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


def page(ledger: Ledger, most: int, first: str | None = None) -> BookAccounts:
    """Return what is read of a page."""
    return book_accounts(ledger, "a", Parts(most=most, first=first))["a"]


@pytest.mark.parametrize("most", [1, 2, 3, 4, 5])
def test_pages_together_are_all(divided: Ledger, most: int) -> None:
    """Each part is on one page, as it is among all; what is of no part is on each."""
    whole = {view.id: view for view in views.accounts(divided, "a")}
    of_none = {name for name in whole if not partition_of(name)}
    seen: list[str] = []
    first: str | None = None
    while True:
        found = page(divided, most, first)
        shown = {view.id: view for view in found.accounts}
        assert shown.items() <= whole.items()
        assert of_none <= shown.keys()
        seen += sorted(shown.keys() - of_none)
        assert (found.parts.known, found.parts.all_read) == (4, most >= 4)
        first = found.parts.following
        if first is None:
            break
    assert sorted(seen) == sorted(whole.keys() - of_none)


def test_a_page_goes_down_from_a_name(divided: Ledger) -> None:
    """A name that is no part begins with the next one below."""
    read = {partition_of(view.id) for view in page(divided, 2, "o").accounts} - {""}
    assert read == {"east", "north"}
    assert page(divided, 2, "o").parts.following is None
    assert page(divided, 1, "o").parts.following == "east"
    assert page(divided, 2, "a").parts == (4, 0, None)


def test_the_command_that_goes_on_can_be_pasted() -> None:
    """Names may have spaces; a shell reads each as one word."""
    (line,) = parts_lines("my data", PartsRead(3, 1, "new york; ls"))
    assert "`dpflow status 'my data' --parts-from 'new york; ls'` goes on" in line
    assert parts_lines("my data", PartsRead(3, 3, None)) == []


def test_what_is_overdrawn_is_on_every_page(divided: Ledger) -> None:
    """It breaks the guarantee of all parts, so that no page may hide it."""
    assert not views.terms(divided, "a")[-1].overdrawn
    name = granted(divided, policies=[DIVIDED], partitions=("east",), flow="daily")
    charge_by_hand(divided, name, PureDP(epsilon=5), reason="it cost more")
    states = {view.id: view.state for view in page(divided, 1).accounts}
    assert states["a#1/partition/east"] == "overdrawn"
    assert "a#1/partition/north" not in states
    assert views.terms(divided, "a")[-1].overdrawn


def test_gates_by_name_are_those_of_the_whole(ledger: Ledger) -> None:
    """An account that is read alone stands as it does among all."""
    step = Gaussian(sensitivity=1, sigma=40)
    ledger.settle(granted(ledger, step, policies=[KEPT], flow="weekly"))
    with ledger.storage.read() as reading:
        whole = {
            gate.id: gate
            for gate in gates_of_book(reading.load(Keys(whole=("k",))), "k")
        }
    for name, gate in whole.items():
        assert standing_gates(ledger, "k", [name]) == {name: gate}
        found = views.used_of(ledger, name)
        assert found == (gate.rule, gate.settled + gate.held)


def test_a_page_is_checked_against_the_journal(divided: Ledger, path: Place) -> None:
    """A part that was edited is refused on its page; the others are what they are."""
    edit(
        path,
        "UPDATE row SET value = replace(value, '[1743', '[1643') "
        "WHERE key = 'account:a#1/partition/east'",
    )
    assert page(divided, 1).parts.read == 1
    with pytest.raises(LedgerCorrupt):
        page(divided, 1, "east")
    with pytest.raises(LedgerCorrupt):
        page(divided, 4)
