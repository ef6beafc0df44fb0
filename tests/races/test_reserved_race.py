"""Processes under another name charge what remains, and a reserved share stays."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dpflow.exceptions import BudgetRefused
from dpflow.ledger import open_ledger
from dpflow.ledger.audit.verify import verify
from tests.ledger.decision.test_reserved import ONE, REPORT, fits
from tests.ledger.processes import Child, Gate
from tests.ledger.support import Place, granted, make_ledger, url

pytestmark = pytest.mark.storages("sqlite", "postgres")


def test_processes_under_another_name_take_nothing_of_a_reserved_share(
    path: Place,
) -> None:
    """Two processes use the rest to the last hundredth; 52 of 52 runs fit, no 53rd."""
    ledger, gate = make_ledger(path), Gate()

    def work(say: Callable[[str], None]) -> None:
        gate.wait()
        here = open_ledger(url(path))
        while True:
            try:
                say(granted(here, "1", policies=[ONE], flow="somebody else"))
            except BudgetRefused:
                return

    children = [Child(work) for _ in range(2)]
    gate.open()
    ended = [child.end() for child in children]
    assert [code for code, _ in ended] == [0, 0]
    assert sum(len(lines) for _, lines in ended) == 48
    assert not fits(ledger, ONE, "1e-12", None)
    for _ in range(52):
        granted(ledger, "1", policies=[ONE], flow=REPORT)
    assert not fits(ledger, ONE, "1e-12", REPORT)
    assert verify(ledger).bad == []
    ledger.close()
