"""What is read page by page is whole, whatever the size of a page."""

from __future__ import annotations

from typing import Any

import pytest

from dpflow.ledger.audit import copies
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.tables.sqlite import SqliteDatabase
from dpflow.ledger.views import entries, history, runs
from dpflow.ledger.views import releases as kept
from dpflow.ledger.views.reading import open_reading, pages
from tests.ledger.histories import in_memory, in_postgres, play


def read_all(ledger: Ledger) -> dict[str, Any]:
    """Return all that an export, an audit and people read page by page."""
    with open_reading(ledger) as reading:
        charges = runs.add_costs(reading, "a", runs.read_charges(reading, "a"))
    return {
        "export": [*copies.export_lines(ledger)],
        "verify": verify(ledger),
        "history": history(ledger, limit=10**6, all_accounts=True),
        "releases": kept.releases(ledger),
        "newest releases": kept.releases(ledger, most=3),
        "charges": [*charges],
    }


def set_page(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Let pages have so many rows, wherever rows are read together."""
    monkeypatch.setitem(pages.__kwdefaults__, "size", size)
    monkeypatch.setattr(copies, "PAGE", size)
    for module in (entries, runs, kept):
        monkeypatch.setattr(module, "_PAGE", size)


@pytest.mark.parametrize("make_database", [in_memory, in_postgres])
def test_a_small_page_hides_nothing(monkeypatch, tmp_path, make_database):
    """Neither a last page that is full nor one that is not."""
    ledger = play(5, make_database).ledger
    whole = read_all(ledger)
    assert whole["verify"].bad == []
    for size in (1, 2, 3):
        set_page(monkeypatch, size)
        assert read_all(ledger) == whole
        copies.backup(ledger, tmp_path / f"{size}.db")
        copy = SqliteDatabase(tmp_path / f"{size}.db")
        assert read_all(Ledger(copy, ledger.owners)) == whole
