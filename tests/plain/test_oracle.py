"""Random histories on the ledger of one journal and on the one in plain tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.plain.histories import (
    LENGTH,
    Old,
    People,
    Plain,
    Play,
    in_memory,
    in_postgres,
    in_sqlite,
)
from tests.sizes import scaled

HISTORIES = max(12, scaled(12))


def play(seed: int, database: Callable[[], Any] = in_memory, **how: Any) -> Play:
    """Play a history on both ledgers, and compare after each command."""
    owners = People()
    plain = Plain(owners, database(), **how)
    history = Play(seed, owners, [Old(owners), plain])
    for _ in range(LENGTH):
        history.step()
        for command, (old, new) in history.answers[-1:]:
            assert old == new, command
    old, new = (ledger.sums() for ledger in history.ledgers)
    assert old == new
    return history


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_both_ledgers_answer_alike(seed: int) -> None:
    """Class, amounts, values, the refusing account and the sums at rest are equal."""
    play(seed)


@pytest.mark.parametrize("database", [in_sqlite, in_postgres])
@pytest.mark.parametrize("seed", range(3))
def test_both_databases_answer_alike(seed: int, database: Callable[[], Any]) -> None:
    """A file and a server give the answers of a ledger in memory."""
    play(1000 + seed, database, processes=2, losses=0.2)


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_lost_commits_and_two_processes_change_nothing(seed: int) -> None:
    """A commit without an answer is found again by another sending of its command."""
    history = play(seed, processes=2, losses=0.2)
    assert history.ledgers[1].lost
