"""Where the engines find dataset, policy and budget; notebooks get the same records."""

from __future__ import annotations

import pytest

from dpflow.accounting.costs.notions import PureDP
from dpflow.forecast import check_policies, forecast
from tests.cli.support import ADULT, Shop

TENTH = "PureDP(epsilon=0.1)"


def edited(shop: Shop) -> Shop:
    """Charge a dataset of epsilon 1, and write 3 into its file."""
    shop.charge(PureDP(epsilon="0.1"), dataset="adult", flow=None)
    shop.write(ADULT.replace("epsilon: 1", "epsilon: 3"), "adult.yaml")
    return shop


def test_the_ledgers_copy_governs_every_answer(shop: Shop) -> None:
    """Not the file: steps are refused by what the ledger has applied."""
    edited(shop)
    assert forecast("adult", costs=[TENTH]).outlook.runs_left == 9
    found = {each.path.stem: each for each in check_policies().files}
    assert found["adult"].refused
    assert not found["cdnow"].refused


def test_the_file_speaks_for_what_the_ledger_does_not_know(empty: Shop) -> None:
    """Before there is a ledger, or a charge."""
    empty.write(ADULT, "adult.yaml")
    assert forecast(costs=[TENTH]).outlook.runs_left == 10
    found = check_policies()
    assert found.fine
    assert not found.compared


def test_a_notebook_is_warned_of_a_ledger_that_forgot_charges(shop: Shop) -> None:
    """As the commands warn: what is left would be said too large."""
    place = shop.root / ".dpflow" / "ledger.db"
    before = place.read_bytes()
    edited(shop)
    for end in ("-wal", "-shm"):
        place.with_name(f"{place.name}{end}").unlink(missing_ok=True)
    place.write_bytes(before)
    with pytest.warns(UserWarning, match="reconcile"):
        forecast("adult", costs=[TENTH])
