"""`dpflow report` and `serve`; commands that read a damaged ledger."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys

import httpx
import pytest

from tests.cli.support import Shop, run
from tests.ledger.support import edit
from tests.projects import ROOT
from tests.tables import read_tables


def test_the_page_is_at_the_address_that_it_prints(shop: Shop) -> None:
    """On this machine's own address; Ctrl-C ends it without a word."""
    with subprocess.Popen(
        [sys.executable, "-m", "dpflow", "serve", "--port", "0", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:
        try:
            lines = [process.stdout.readline() for _ in range(3)]
            url = json.loads("".join(lines))["url"]
            assert url.startswith("http://127.0.0.1:")
            for path, text in (
                ("", "Privacy budget report"),
                ("dataset/cdnow", "week"),
            ):
                page = httpx.get(url + path, timeout=60)
                assert (page.status_code, text in page.text) == (200, True)
        finally:
            process.send_signal(signal.SIGINT)
            errors = process.stderr.read()
    assert "Traceback" not in errors
    assert process.returncode == 0, errors


ROWS = read_tables(__file__)


@pytest.mark.parametrize("damage", ROWS["damages"])
def test_no_command_shows_a_traceback(shop: Shop, damage: str) -> None:
    """Whatever the damage: an answer or an error that says so, and where to go."""
    shop.charge()
    shop.ledger().close()
    shop.reserve()
    edit(shop.root / ".dpflow" / "ledger.db", damage)
    refused = 0
    for command in ROWS["readers"]:
        result = run(*shlex.split(command))
        assert isinstance(result.exception, SystemExit | None), (command, damage)
        assert result.exit_code in (0, 1), (command, result.output)
        refused += result.exit_code
    assert refused
    answer = run("ledger", "verify")
    assert answer.exit_code == 1
    assert "dpflow ledger restore" in answer.output


def test_an_error_of_dpflow_is_not_blamed_on_the_ledger(shop, monkeypatch):
    """Only where the ledger does not verify is it said to be damaged."""
    shop.charge()

    def err(*_: object) -> None:
        raise ValueError

    views = sys.modules["dpflow.ledger.views.accounts"]
    monkeypatch.setattr(views, "term_accounts", err)
    assert isinstance(run("status").exception, ValueError)
