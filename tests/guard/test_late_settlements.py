"""A settlement that the ledger did not take is made as soon as it can be."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from dpflow import PureDP, guarded
from tests.projects import (
    bring_ledger_back,
    caught,
    held,
    hide_ledger,
    kinds,
    run_python,
    spent,
)

TENTH = PureDP(epsilon="0.1")


ASK = """
from dpflow import PureDP, guarded

@guarded(dataset="shop", cost=PureDP(epsilon="0.1"), release_key="x", name="count")
def count():
    return 6

print(count())
"""


@pytest.mark.parametrize("fails", [False, True])
def test_another_process_need_not_wait_for_this_one_to_end(shop, fails):
    """Its key is free, or replayed, once the ledger is back; the charge stays."""

    @guarded(
        dataset="shop",
        cost=TENTH,
        release_key="x",
        ignore=("shop", "fails"),
        name="count",
    )
    def count() -> int:
        hide_ledger(shop)
        return 5 // (not fails)

    with pytest.warns(RuntimeWarning, match="stays charged in full and unsettled"):
        assert count() == 5 if not fails else caught(count)
    bring_ledger_back(shop)
    assert run_python(ASK, folder=shop) == (6 if fails else 5)
    assert kinds() == ["reserve", "settle"] * (1 + fails)
    assert (spent(), held()) == ("0.2" if fails else "0.1", "0")
    for thread in threading.enumerate():
        if thread.name == "dpflow-unsettled":
            thread.join(60)
            assert not thread.is_alive()


LAST = """
import warnings
from pathlib import Path
from dpflow import PureDP, guarded
from tests.projects import bring_ledger_back, hide_ledger

folder = Path.cwd()

@guarded(dataset="shop", cost=PureDP(epsilon="0.1"), name="count")
def count():
    hide_ledger(folder)

warnings.simplefilter("ignore")
count()
bring_ledger_back(folder)
print("null")
"""


def test_a_process_tries_once_more_when_it_ends(shop: Path) -> None:
    """What the ledger can take then is not left for an operator to close."""
    run_python(LAST, folder=shop)
    assert kinds() == ["reserve", "settle"]
    assert (spent(), held()) == ("0.1", "0")
