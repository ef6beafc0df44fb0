"""A ledger in a database of its own."""

from collections.abc import Iterator
from contextlib import closing

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
    with closing(create_ledger(postgres_url)) as opened:
        yield opened
