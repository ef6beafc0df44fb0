"""Death at every statement while a ledger is made: half a ledger is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dpflow.exceptions import LedgerCorrupt
from dpflow.ledger import create_ledger, open_ledger, opening
from tests.ledger.faults import FaultySqlite
from tests.ledger.processes import Child, dying
from tests.ledger.support import url

#: More statements than the making of a ledger has; the test checks that it is.
MOST = 200


def test_death_while_a_ledger_is_made(tmp_path: Path) -> None:
    """Half a ledger is none: it is refused, and nothing is granted from it."""
    place = tmp_path / "ledger.db"
    for number in range(MOST):

        def work(say: Callable[[str], None], at: int = number) -> None:
            class Mortal(FaultySqlite):
                def _connect(self) -> object:
                    self.after = hook
                    return super()._connect()

            hook = dying(at)
            opening.SqliteStorage = Mortal  # type: ignore[misc]
            create_ledger(url(place))

        Child(work).end()
        try:
            open_ledger(url(place)).close()
        except LedgerCorrupt:
            for item in tmp_path.iterdir():
                item.unlink()
        else:
            # It was killed after the last COMMIT, or not at all.
            break
    assert 10 < number < MOST - 1
