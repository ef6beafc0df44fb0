"""`dpflow evidence`: a bundle, what it says, and when it fails."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import zipfile
from contextlib import closing

import pytest

from tests.cli.support import run, run_fine, run_json
from tests.signing import key_file


@pytest.fixture(autouse=True)
def _no_key(monkeypatch):
    monkeypatch.delenv("DPFLOW_LEDGER_KEY", raising=False)


def test_a_bundle_is_written_and_verified(shop):
    """And its verifier agrees, in a Python without dpflow."""
    shop.charge()
    shop.charge(outcome="failed")
    found = run_json("evidence", "--out", "bundle.zip")
    assert (found["fine"], found["bad"], found["signed"]) == (True, [], False)
    assert found["accounts"] == 3
    with zipfile.ZipFile("bundle.zip") as archive:
        archive.extractall("unpacked")
    done = subprocess.run(
        [sys.executable, "-I", "-S", "verify.py"],
        cwd=shop.root / "unpacked",
        env={},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert f"{found['entries']} entries of 3 accounts" in done.stdout


def test_with_the_private_key_the_manifest_is_signed(shop, monkeypatch):
    """And says so to people."""
    monkeypatch.setenv("DPFLOW_LEDGER_KEY", key_file(shop.root, "k"))
    shop.charge()
    assert run("ledger", "checkpoint").exit_code == 0
    text = run_fine("evidence")
    assert "its manifest is signed" in text
    assert "python -I verify.py" in text
    assert "manifest.sig" in zipfile.ZipFile("evidence.zip").namelist()


def test_with_the_public_key_it_is_not(shop, monkeypatch):
    """The bundle is as good as one that was written without a key."""
    shop.charge()
    monkeypatch.setenv("DPFLOW_LEDGER_KEY", key_file(shop.root, "k", public=True))
    assert "not signed: DPFLOW_LEDGER_KEY names no private key" in run_fine("evidence")


def test_without_a_checkpoint_the_key_finds_it_bad(shop, monkeypatch):
    """Accounts that were opened without the key may have been written anew."""
    shop.charge()
    monkeypatch.setenv("DPFLOW_LEDGER_KEY", key_file(shop.root, "k"))
    result = run("evidence")
    assert result.exit_code == 1
    assert "has no signed checkpoint" in result.stderr


def test_a_bad_ledger_gives_a_bundle_and_a_failure(shop):
    """The bundle is evidence of that as well."""
    shop.charge()
    with closing(sqlite3.connect(shop.root / ".dpflow" / "ledger.db")) as connection:
        connection.executescript(
            "DROP TRIGGER entry_stays;"
            "UPDATE entry SET writer = 'eve@x' WHERE kind = 'reserve';"
        )
    result = run("evidence")
    assert result.exit_code == 1
    assert "not what was hashed" in result.stderr
    assert (shop.root / "evidence.zip").exists()


def test_a_file_that_is_there_is_kept(shop):
    """Evidence is not overwritten."""
    (shop.root / "evidence.zip").write_text("mine", "utf-8")
    result = run("evidence")
    assert (result.exit_code, "already" in result.stderr) == (1, True)
    assert (shop.root / "evidence.zip").read_text("utf-8") == "mine"


def test_nothing_spent_is_no_error(shop):
    """The bundle of an empty ledger says so."""
    assert run_json("evidence", "--out", "b.zip")["entries"] == 0
