"""`dpflow ledger verify`, `trust` and `reconcile`."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from dpflow.exceptions import BudgetRefused, LedgerUnwitnessed
from tests.cli.support import Shop, run, run_fine, run_json
from tests.ledger.support import edit

BECAUSE = ("--reason", "the disk died")


def roll_back(shop: Shop) -> None:
    """Charge, and put a copy from before in the ledger's place."""
    shop.charge()
    run_fine("ledger", "backup", "before.db")
    shop.charge(step="forgotten")
    put_back(shop)


def put_back(shop: Shop) -> None:
    """Put that copy in the ledger's place, by hand."""
    for part in ("", "-wal", "-shm"):
        (shop.root / ".dpflow" / f"ledger.db{part}").unlink(missing_ok=True)
    shutil.copyfile("before.db", shop.root / ".dpflow" / "ledger.db")


def witness_of(shop: Shop) -> Path:
    """Return the witness's file."""
    name = (shop.policies / "ledger.lock").read_text().strip()
    return Path(os.environ["XDG_STATE_HOME"]) / "dpflow" / f"{name}.witness"


def test_an_export_is_verified_up_to_the_newest_entry_of_the_ledger(shop: Shop) -> None:
    """`verify FILE` prints the entry that `ledger info` names; an edit is found."""
    shop.charge()
    run_fine("ledger", "export", "--out", "journal.jsonl")
    (number, digest) = run_json("ledger", "info")["newest_entries"]["cdnow"]
    data = run_json("ledger", "verify", "journal.jsonl")
    assert (data["fine"], data["entries"]) == (True, number)
    assert data["heads"] == {"cdnow": [number, digest]}
    said = f"cdnow: {number}, hash {digest}"
    assert said in run_fine("ledger", "verify", "journal.jsonl")
    assert said in run_fine("ledger", "info")
    place = shop.root / "journal.jsonl"
    text = place.read_text("utf-8")
    place.write_text(text.replace('"kind": "settle"', '"kind": "void"', 1), "utf-8")
    assert run_json("ledger", "verify", "journal.jsonl", exit_code=1)["bad"]


def test_a_new_machine_is_shown_the_ledger_before_it_is_trusted(shop: Shop) -> None:
    """Nothing is written without --yes."""
    shop.charge()
    witness_of(shop).unlink()
    with pytest.raises(LedgerUnwitnessed):
        shop.charge()
    result = run("ledger", "trust")
    assert (result.exit_code, witness_of(shop).exists()) == (1, False)
    assert "cdnow#1: used" in result.stdout
    assert "add --yes" in result.stdout
    data = run_json("ledger", "trust", "--yes")
    assert (data["begun"], data["witness"]) == (True, str(witness_of(shop)))
    assert list(data["used"]) == [
        "cdnow#1",
        "cdnow#1/flow/weekly-report",
        "cdnow#1/odometer/weekly-report",
    ]
    shop.charge()
    assert "already" in run("ledger", "trust", "--yes").stderr


def test_a_bad_ledger_is_not_trusted(shop):
    """It is verified first."""
    shop.charge()
    witness_of(shop).unlink()
    place = shop.root / ".dpflow" / "ledger.db"
    edit(place, "UPDATE journal SET at = '' WHERE number = 2")
    assert run("ledger", "trust", "--yes").exit_code == 1
    assert not witness_of(shop).exists()


def test_a_reader_of_a_rolled_back_ledger_is_warned(shop: Shop) -> None:
    """The numbers shown are too small; they are shown all the same."""
    roll_back(shop)
    for command in (["status"], ["history"], ["ledger", "info"], ["report"]):
        result = run(*command)
        assert result.exit_code == 0
        assert "warning: the ledger" in result.stderr
        assert "dpflow ledger reconcile" in result.stderr
    page = shop.root / "report.html"
    assert "<strong>Warning:</strong>" in page.read_text("utf-8")
    assert run("report", "--verify").exit_code == 1
    assert "Witness: contradicts." in page.read_text("utf-8")


def test_what_a_ledger_forgot_is_charged_again(shop: Shop) -> None:
    """Then steps run, and the journal gives the reason."""
    roll_back(shop)
    data = run_json("ledger", "reconcile", "--reason", "the disk died")
    assert (data["repaired"], data["agrees"]) == (True, False)
    loss = data["losses"][0]
    assert loss["loss"]["number"] > loss["loss"]["common"]
    assert loss["posted"][0]["account"] == "cdnow#1"
    shop.charge()
    assert "holds all" in run_fine("ledger", "reconcile")
    kinds = [each["kind"] for each in run_json("history", "cdnow")["entries"]]
    assert kinds == ["settle", "reserve", "repair", "settle", "reserve", "open"]
    assert "the disk died" in run_fine("history", "cdnow")


def test_a_forgotten_freeze_is_repaired_by_a_freeze(shop: Shop) -> None:
    """First it is shown, then done; both say how to go on."""
    shop.charge()
    run_fine("ledger", "backup", "before.db")
    run_fine("freeze", "cdnow", "--reason", "wrong sigma")
    put_back(shop)
    data = run_json("ledger", "reconcile", exit_code=1)
    assert [(loss["dataset"], loss["decided"]) for loss in data["losses"]] == [
        ("cdnow", False)
    ]
    text = run_fine("ledger", "reconcile", *BECAUSE)
    assert "dpflow unfreeze cdnow --reason TEXT" in text
    with pytest.raises(BudgetRefused, match=r"is frozen by .*a decision was lost"):
        shop.charge()
    run_fine("unfreeze", "cdnow", "--reason", "it was right")
    shop.charge()


def test_the_place_of_a_witness_shows_no_password(shop, monkeypatch):
    """Nor does the error of one that does not answer."""
    monkeypatch.setenv("DPFLOW_WITNESS", "postgresql://me:secret@127.0.0.1:9/db")
    text = run("ledger", "info").output
    assert "witness            postgresql://me@127.0.0.1:9/db" in text
    result = run("ledger", "verify")
    assert result.exit_code == 1
    assert "does not answer" in result.stderr
    assert "secret" not in text + result.stderr
