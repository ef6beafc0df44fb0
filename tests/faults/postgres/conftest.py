"""A ledger in a database of its own."""

from collections.abc import Iterator

import pytest

from dpflow.ledger.ledger import Ledger
from dpflow.ledger.opening import create_ledger


@pytest.fixture(autouse=True)
def _no_witness(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waive the witness of ledgers on servers that tests harm."""
    monkeypatch.setenv("DPFLOW_WITNESS", "none")


@pytest.fixture
def ledger(postgres_url: str) -> Iterator[Ledger]:
    """Give a ledger in a new database."""
    opened = create_ledger(postgres_url)
    yield opened
    opened.close()
