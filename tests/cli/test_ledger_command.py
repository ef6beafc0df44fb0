"""`dpflow ledger`: copies, exports, charges by hand, witnesses, and shared ledgers."""

from __future__ import annotations

import csv
import io
import os
import shutil
import stat

import pytest

from dpflow.cli.ledger import copies
from dpflow.config import LEDGER_VARIABLE, WITNESS_VARIABLE
from dpflow.guard.project import forget_projects
from dpflow.ledger.opening import roles_script
from tests.cli.support import Shop, run, run_fine, run_json

WHY = ("--reason", "a test")


def failed(*arguments: str) -> str:
    """Run a command that must fail and return what it says."""
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (1, ""), result.output
    return result.stderr


def test_a_forfeited_reservation_can_be_closed(shop: Shop) -> None:
    """It stays charged; a running one is left alone."""
    close = ("ledger", "reservations", "--close")
    lost = shop.reserve()
    status = ("status", "cdnow")
    before = run_json(*status)["datasets"][0]["standing"]
    text = run_fine(*close, lost, *WHY)
    assert "charged in full" in text
    assert before == run_json(*status)["datasets"][0]["standing"]
    assert before["accounts"][0]["forfeited"] == {"mu_squared": "0.01"}
    assert run_json("ledger", "reservations")["reservations"] == []
    assert "forfeited already" in failed(*close, lost, *WHY)
    ledger = shop.ledger()
    running = shop.reserve(owner=ledger.owners.mine())
    assert "still runs" in failed(*close, running, *WHY)
    ledger.close()
    other = shop.reserve()
    data = run_json(*close, other, *WHY)
    assert (data["reservation"], data["state"]) == (other, "forfeited")


@pytest.mark.parametrize("sign", [*"=+-@", "\t", "\r", "\n"])
def test_no_cell_of_an_export_is_a_formula(sign: str) -> None:
    """A spreadsheet reads each cell as the text that it is."""
    texts = [f'{sign}cmd|"/C calc"!A0', f"a{sign}1", ""]
    rows = [["number", "body"], *([copies._cell(text), 7] for text in texts)]
    file = io.StringIO(newline="")
    assert copies._write(file, copies.Format.CSV, rows) == 3
    header, *cells = csv.reader(io.StringIO(file.getvalue(), newline=""))
    assert header == ["number", "body"]
    assert cells == [[f"'{texts[0]}", "7"], [texts[1], "7"], ["", "7"]]


@pytest.mark.usefixtures("empty")
def test_folders_of_ledger_and_witness_are_for_their_owner_only(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those above them that dpflow makes, too, whatever the mask; others stay."""
    home = tmp_path_factory.mktemp("home")
    home.chmod(0o755)
    monkeypatch.setenv(LEDGER_VARIABLE, f"sqlite:///{home}/a/b/ledger.db")
    monkeypatch.setenv(WITNESS_VARIABLE, str(home / "c/d"))
    before = os.umask(0)
    try:
        run_fine("ledger", "init")
        run_fine("ledger", "backup", "kept.db")
        shutil.rmtree(home / "a")
        run_fine("ledger", "restore", "kept.db", *WHY)
    finally:
        os.umask(before)
    folders = [home, *(each for each in home.rglob("*") if each.is_dir())]
    names = {str(each.relative_to(home)) for each in folders}
    assert names >= {"a", "a/b", "c", "c/d"}
    modes = {each: stat.S_IMODE(each.stat().st_mode) for each in folders}
    assert modes.pop(home) == 0o755
    assert set(modes.values()) == {0o700}


@pytest.fixture
def shared(empty, postgres_url, monkeypatch):
    """Give a project whose ledger's URL names an empty database, with a password."""
    url = postgres_url.replace("//postgres@", "//postgres:hunter2@")
    monkeypatch.setenv("DPFLOW_LEDGER_URL", url)
    yield url
    forget_projects()


def test_a_shared_ledger_is_made_shown_and_never_replaced(shared, empty):
    """As in a file, and its password is in no output."""
    text = run_fine("ledger", "init")
    pinned = (empty.policies / "ledger.lock").read_text().strip()
    assert "Made the ledger postgresql://postgres@/" in text
    assert f"with id {pinned}." in text
    assert "dpflow ledger roles --sql" in text
    status = run_json("ledger", "info")
    assert status["ledger"] == pinned
    result = run("ledger", "init")
    assert result.exit_code == 1
    assert "none is ever replaced" in result.stderr
    every = [text, str(status), result.stderr, run_fine("ledger", "info")]
    assert "hunter2" not in "".join(every)


def test_roles_are_printed_as_a_script() -> None:
    """The script is SQL and nothing else, so that it can be piped."""
    assert run_fine("ledger", "roles", "--sql") == roles_script()


def test_a_move_names_the_witness_before_it_stops_steps(shop, monkeypatch):
    """A ledger on a server has no default place for it; the steps go on."""
    monkeypatch.delenv(WITNESS_VARIABLE, raising=False)
    text = failed("ledger", "move", "postgresql://127.0.0.1:1/x")
    assert "the witness is not set" in text
    assert f"{shop.ledger().id}.witness until now" in text
    shop.charge()
