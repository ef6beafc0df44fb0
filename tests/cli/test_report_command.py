"""`dpflow report` writes one page; `--json` prints the same facts."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

from dpflow.guard.project import forget_projects
from tests.cli.support import Shop, run


def test_a_forgotten_charge_is_told_with_and_without_a_verification(
    shop: Shop,
) -> None:
    """The numbers are too small then; a page must not look as if all were well."""
    shop.charge()
    place = shop.root / ".dpflow" / "ledger.db"
    before = place.read_bytes()
    shop.charge()
    forget_projects()
    assert not place.with_name("ledger.db-wal").exists()
    place.write_bytes(before)
    told = run("report")
    assert told.exit_code == 0
    assert "lacks" in told.stderr
    page = (shop.root / "report.html").read_text("utf-8")
    assert "<strong>Warning:</strong>" in page
    verified = run("report", "--verify")
    assert verified.exit_code == 1
    page = (shop.root / "report.html").read_text("utf-8")
    assert "Witness: contradicts." in page


def test_a_bad_ledger_is_an_exit_code_and_a_page(shop: Shop) -> None:
    """The page is written, for it says what is bad."""
    shop.charge()
    forget_projects()
    with closing(sqlite3.connect(shop.root / ".dpflow" / "ledger.db")) as connection:
        names = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'trigger'"
        ).fetchall()
        for (name,) in names:
            connection.execute(f"DROP TRIGGER {name}")
        changed = connection.execute(
            "UPDATE entry SET body = replace(body, 'weekly_revenue', 'other') "
            "WHERE kind = 'reserve'"
        )
        assert changed.rowcount > 0
        connection.commit()
    result = run("report", "--verify")
    assert result.exit_code == 1
    assert "the ledger is bad" in result.stderr
    assert "The ledger is bad." in (shop.root / "report.html").read_text("utf-8")
    assert json.loads(run("report", "--verify", "--json").stdout)["stamp"]["found"][
        "bad"
    ]
