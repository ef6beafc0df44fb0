"""`dpflow ledger verify`, `trust` and `reconcile`."""

from __future__ import annotations

import os
from pathlib import Path

from tests.cli.support import Shop, run
from tests.ledger.support import edit


def witness_of(shop: Shop) -> Path:
    """Return the witness's file."""
    name = (shop.policies / "ledger.lock").read_text().strip()
    return Path(os.environ["XDG_STATE_HOME"]) / "dpflow" / f"{name}.witness"


def test_a_bad_ledger_is_not_trusted(shop):
    """It is verified first."""
    shop.charge()
    witness_of(shop).unlink()
    place = shop.root / ".dpflow" / "ledger.db"
    edit(place, "UPDATE journal SET at = '' WHERE number = 2")
    assert run("ledger", "trust", "--yes").exit_code == 1
    assert not witness_of(shop).exists()


def test_the_place_of_a_witness_shows_no_password(shop, monkeypatch):
    """Nor does the error of one that does not answer."""
    monkeypatch.setenv("DPFLOW_WITNESS", "postgresql://me:secret@127.0.0.1:9/db")
    text = run("ledger", "info").output
    assert "witness            postgresql://me@127.0.0.1:9/db" in text
    result = run("ledger", "verify")
    assert result.exit_code == 1
    assert "does not answer" in result.stderr
    assert "secret" not in text + result.stderr
