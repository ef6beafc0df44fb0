"""What a changed program could write into a ledger."""

from __future__ import annotations

from typing import Any

import pytest

from dpflow.ledger import journal
from dpflow.ledger.entry import Entry
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.model import Decision


def settle_for(
    ledger: Ledger,
    charge: str,
    monkeypatch: pytest.MonkeyPatch,
    share: int,
    **told: Any,
) -> None:
    """Settle a charge at a part of what it holds, as a changed program could.

    Hashes, rows and sums fit each other.
    """
    write = Decision.write

    def forging(pen: Decision, kind: str, amounts: Any, *rest: Any, **kw: Any) -> Entry:
        held = pen.state.charge(charge).held
        forged = {name: tuple(a * share // 20 for a in held[name]) for name in amounts}
        return write(pen, kind, forged, *rest, **kw)

    with monkeypatch.context() as patch:
        patch.setattr(journal, "may_return", lambda *_: True)
        patch.setattr(Decision, "write", forging)
        ledger.settle(charge, **told)
