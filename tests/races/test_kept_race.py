"""Eight processes charge what is left, and the kept runs stay."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dpflow.exceptions import BudgetRefused
from dpflow.ledger import open_ledger
from dpflow.ledger.audit.verify import verify
from tests.ledger.processes import Child, Gate
from tests.ledger.support import Place, granted, make_ledger, make_policy, url

PROCESSES = 8
KEPT = make_policy(
    other_flows="allow",
    flows="{weekly-report: {keep: 5, costs: ['PureDP(epsilon=0.1)']}}",
)


def test_racing_processes_leave_what_is_kept(path: Place) -> None:
    """They get half of the budget to the last hundredth, and five runs follow."""
    ledger = make_ledger(path)
    gate = Gate()

    def work(say: Callable[[str], None]) -> None:
        gate.wait()
        here = open_ledger(url(path))
        while True:
            try:
                say(granted(here, "0.01", policies=[KEPT], flow="ad hoc"))
            except BudgetRefused:
                return

    children = [Child(work) for _ in range(PROCESSES)]
    gate.open()
    ended = [child.end() for child in children]
    assert [code for code, _ in ended] == [0] * PROCESSES
    assert sum(len(lines) for _, lines in ended) == 50
    for _ in range(5):
        granted(ledger, "0.1", policies=[KEPT], flow="weekly-report")
    with pytest.raises(BudgetRefused):
        granted(ledger, "0.01", policies=[KEPT], flow="weekly-report")
    assert verify(ledger).bad == []
    ledger.close()
