"""A ledger that is missing, foreign, read-only or full: no step runs on it."""

from __future__ import annotations

import pytest

from dpflow.exceptions import ConfigurationError, LedgerCorrupt, LedgerMissing
from tests.bad.refusals import refusal, step_at
from tests.projects import TENTH, caught, ledger_away, ledger_file, make_project, rows


def test_a_missing_ledger_is_an_error_and_never_made(tmp_path, monkeypatch):
    """A new, empty ledger would forget what has been spent."""
    make_project(tmp_path, monkeypatch)
    with ledger_away(tmp_path):
        for _ in range(2):
            error = caught(step_at(TENTH))
            assert type(error) is LedgerMissing
            assert str(ledger_file(tmp_path)) in error.message
            assert "DPFLOW_LEDGER_URL" in error.message
            assert not ledger_file(tmp_path).exists()
    assert rows(tmp_path)["journal"] == []


def test_a_ledger_without_its_pin_or_with_another_one_is_refused(tmp_path, monkeypatch):
    """The policies' folder names the id of the right ledger."""
    make_project(tmp_path, monkeypatch)
    pin = tmp_path / "policies" / "ledger.lock"
    pin.write_text("f" * 32, "utf-8")
    assert "f" * 32 in refusal(tmp_path, step_at(TENTH), LedgerCorrupt).message
    pin.unlink()
    error = refusal(tmp_path, step_at(TENTH), ConfigurationError)
    assert "ledger.lock" in error.message


@pytest.mark.promise("missing-file")
def test_a_file_that_is_no_ledger_is_refused(tmp_path, monkeypatch):
    """Garbage and a cut-off file stay as they are; the error says what to do."""
    make_project(tmp_path, monkeypatch)
    whole = ledger_file(tmp_path).read_bytes()
    contents = [b"not a database, but long enough to look like one\n" * 100]
    contents += [whole[: int(len(whole) * part)] for part in (0.1, 0.5, 0.9)]
    for content in contents:
        with ledger_away(tmp_path):
            ledger_file(tmp_path).write_bytes(content)
            error = caught(step_at(TENTH))
            assert content == ledger_file(tmp_path).read_bytes()
        assert type(error) is LedgerCorrupt
        assert str(ledger_file(tmp_path)) in error.message
        assert "dpflow ledger restore" in error.message


# Root may write everywhere, so this process becomes nobody. Nobody may not read the
# modules of root either, so a first step loads all that the others need.
