"""Commands that only read tell of a damaged ledger in dpflow's words."""

from __future__ import annotations

import pytest

from tests.cli.support import Shop, run
from tests.ledger.support import edit

READERS = [
    ("status",),
    ("status", "--json"),
    ("history",),
    ("why", "cdnow"),
    ("forecast", "cdnow", "--like", "weekly-report"),
    ("policy", "check"),
    ("ledger", "reservations"),
    ("releases", "list"),
    ("report", "--json"),
    ("ledger", "verify"),
    ("freeze", "cdnow", "--reason", "it looks wrong"),
]
DAMAGES = [
    "UPDATE entry SET rows = replace(rows, '[', '[ ')",
    "UPDATE entry SET rows = 'junk'",
    "UPDATE entry SET body = '[]'",
    "UPDATE entry SET kind = 'junk', charge = NULL",
    "DELETE FROM entry WHERE number = 2",
    "UPDATE tag SET number = 999999 WHERE key LIKE 'term/%'",
    "DELETE FROM tag WHERE key LIKE 'account/%'",
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_no_command_shows_a_traceback(shop: Shop, damage: str) -> None:
    """Whatever the damage: an answer or an error that says so, and where to go."""
    shop.charge()
    shop.ledger().close()
    shop.reserve()
    edit(shop.root / ".dpflow" / "ledger.db", damage)
    refused = 0
    for command in READERS:
        result = run(*command)
        assert isinstance(result.exception, SystemExit | None), (command, damage)
        assert result.exit_code in (0, 1), (command, result.output)
        refused += result.exit_code
    assert refused
    told = run("ledger", "verify")
    assert told.exit_code == 1
    assert "dpflow ledger restore" in told.output


def test_an_error_of_dpflow_is_not_blamed_on_the_ledger(shop, monkeypatch):
    """Only where the ledger does not verify is it said to be damaged."""
    shop.charge()

    def err(*_: object) -> None:
        raise ValueError

    monkeypatch.setattr("dpflow.ledger.views.standing.term_accounts", err)
    assert isinstance(run("status").exception, ValueError)
