"""`dpflow ledger verify`, `sign`, `trust` and `reconcile`."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from dpflow.exceptions import BudgetRefused, LedgerUnwitnessed
from dpflow.ledger.keys import key_from_text
from tests.cli.support import Shop, run, run_fine, run_json
from tests.ledger.support import edit
from tests.signing import key_file

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


def test_checkpoints_are_signed_and_checked(shop, monkeypatch):
    """By `verify` and by `verify FILE`; without the key both say so."""
    shop.charge()
    monkeypatch.setenv("DPFLOW_LEDGER_KEY", key_file(shop.root, "k"))
    assert run("ledger", "verify").exit_code == 1
    assert "signed the newest" in run_fine("ledger", "sign")
    shop.charge()
    monkeypatch.setenv("DPFLOW_LEDGER_KEY", key_file(shop.root, "k", public=True))
    data = run_json("ledger", "verify")
    assert (data["checkpoints"], data["signed"]) == (1, True)
    run_fine("ledger", "export", "--out", "journal.jsonl")
    assert "1 checked" in run_fine("ledger", "verify", "journal.jsonl")
    monkeypatch.delenv("DPFLOW_LEDGER_KEY")
    assert "were not checked" in run_fine("ledger", "verify")
    data = run_json("ledger", "verify", "journal.jsonl")
    assert (data["fine"], data["entries"]) == (True, 6)
    assert (data["checkpoints"], data["signed"]) == (1, False)
    place = shop.root / "journal.jsonl"
    text = place.read_text("utf-8")
    place.write_text(text.replace('"kind":"settle"', '"kind":"void"', 1), "utf-8")
    assert run_json("ledger", "verify", "journal.jsonl", exit_code=1)["bad"]


NO_PRIVATE_KEY = {
    "": "DPFLOW_LEDGER_KEY is not set",
    "k" * 40: "names no file of a key (No such file or directory)",
    "key-k.pub": "names a public key, and signing needs a private key",
    "secret": "it holds no key of Ed25519",
}


def test_a_checkpoint_needs_the_private_key(shop, monkeypatch):
    """What else is named is refused with what to do, and nothing is written."""
    shop.charge()
    key_file(shop.root, "k", public=True)
    (shop.root / "secret").write_text("k" * 40, "utf-8")
    before = run_fine("ledger", "export")
    for key, reason in NO_PRIVATE_KEY.items():
        monkeypatch.setenv("DPFLOW_LEDGER_KEY", key)
        result = run("ledger", "sign")
        text = " ".join(result.stderr.split())
        assert (result.exit_code, reason in text) == (1, True), text
        assert "dpflow ledger sign --new-key" in text
        assert "kkk" not in text
    monkeypatch.setenv("DPFLOW_LEDGER_KEY", "")
    assert run_fine("ledger", "export") == before


def test_a_new_key_is_written_once(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The private key for its owner's eyes only; neither file is ever replaced."""
    before = os.umask(0)
    try:
        data = run_json("ledger", "sign", "--new-key", "mine")
    finally:
        os.umask(before)
    private, public = (Path(data[name]) for name in ("private", "public"))
    assert (private, public) == (shop.root / "mine", shop.root / "mine.pub")
    modes = [each.stat().st_mode & 0o777 for each in (private, public)]
    assert modes == [0o600, 0o644]
    texts = [private.read_bytes(), public.read_bytes()]
    assert key_from_text(texts[0]).public == key_from_text(texts[1]).public
    shop.charge()
    monkeypatch.setenv("DPFLOW_LEDGER_KEY", "mine")
    assert "signed the newest" in run_fine("ledger", "sign")
    for there, gone in (("mine", "mine.pub"), ("mine.pub", "mine")):
        kept = (shop.root / there).read_bytes()
        (shop.root / gone).unlink()
        result = run("ledger", "sign", "--new-key", "mine")
        assert (result.exit_code, "File exists" in result.stderr) == (1, True)
        assert [each.name for each in shop.root.glob("mine*")] == [there]
        assert (shop.root / there).read_bytes() == kept
        (shop.root / gone).write_bytes(kept)
    assert run("ledger", "sign", "--new-key", "none/mine").exit_code == 1


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
    edit(place, "UPDATE entry SET at = '' WHERE number = 2")
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
    assert loss["missing"][0]["charge"]
    assert loss["present"] != loss["repaired"]
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
    assert data["lost"] == [{"dataset": "cdnow", "gates": True, "terms": []}]
    text = run_fine("ledger", "reconcile", *BECAUSE)
    assert "dpflow unfreeze cdnow --reason TEXT" in text
    with pytest.raises(BudgetRefused, match=r"is frozen by .*a freeze was lost"):
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
