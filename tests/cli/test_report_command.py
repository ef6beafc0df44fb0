"""`dpflow report` writes one page; `--json` prints the same facts."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

from dpflow.accounting.costs.noise import Gaussian
from dpflow.guard.project import forget_projects
from tests.cli.support import Shop, run, run_fine, run_json


def test_one_page_is_written(shop: Shop) -> None:
    """Beside nothing else; the command says what is on it."""
    shop.charge()
    shop.refuse(Gaussian(sensitivity=1, noise_multiplier="0.5"))
    before = set(shop.root.iterdir())
    text = run_fine("report")
    assert text == "Wrote report.html: 2 datasets, 1 refusal, 4 entries verified.\n"
    assert set(shop.root.iterdir()) - before == {shop.root / "report.html"}
    page = (shop.root / "report.html").read_text("utf-8")
    assert page.startswith("<!DOCTYPE html>")
    assert "Every customer, over all reports of this term: epsilon at most 3" in page
    assert "weekly_revenue" in page


def test_it_can_be_of_one_dataset(shop: Shop) -> None:
    """Its releases and reservations only, at a place of one's choice."""
    shop.charge()
    shop.refuse(Gaussian(sensitivity=1, noise_multiplier="0.5"))
    run_fine("report", "adult", "--out", "pages/adult.html")
    page = (shop.root / "pages" / "adult.html").read_text("utf-8")
    assert "adult" in page
    assert "weekly-report" not in page
    assert "weekly_revenue" not in page


def test_the_facts_are_there_for_programs(shop: Shop) -> None:
    """Nothing is written then, and no infinity is printed."""
    shop.charge()
    found = run_json("report")
    (adult, cdnow) = found["sections"]
    assert (adult["dataset"], cdnow["dataset"]) == ("adult", "cdnow")
    assert cdnow["headline"].startswith("Every customer, over all reports of this term")
    assert {account["kind"] for account in cdnow["accounts"]} >= {"dataset", "odometer"}
    assert found["stamp"]["fine"] is True
    assert len(found["stamp"]["heads"]) == 1
    assert "burn_down" not in cdnow
    assert not (shop.root / "report.html").exists()


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
    told = run("report", "--no-verify")
    assert told.exit_code == 0
    assert "lacks" in told.stderr
    page = (shop.root / "report.html").read_text("utf-8")
    assert "<strong>Warning:</strong>" in page
    verified = run("report")
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
    result = run("report")
    assert result.exit_code == 1
    assert "the ledger is bad" in result.stderr
    assert "The ledger is bad." in (shop.root / "report.html").read_text("utf-8")
    assert json.loads(run("report", "--json").stdout)["stamp"]["fine"] is False


def test_a_place_that_cannot_be_written_is_refused(shop: Shop) -> None:
    """With why."""
    result = run("report", "--out", "/proc/x/report.html")
    assert result.exit_code == 1
    assert "cannot write /proc/x/report.html" in result.stderr
