"""Random histories on the ledger of one journal and on the one in plain tables."""

from __future__ import annotations

from typing import Any

import pytest

from tests.plain.histories import LENGTH, Old, People, Plain, Play, in_memory
from tests.sizes import scaled

HISTORIES = max(12, scaled(12))


def play(seed: int, **how: Any) -> Play:
    """Play a history on both ledgers, and compare after each command."""
    owners = People()
    plain = Plain(owners, in_memory(), **how)
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


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_lost_commits_and_two_processes_change_nothing(seed: int) -> None:
    """A commit without an answer is found again by another sending of its command."""
    history = play(seed, processes=2, losses=0.2)
    assert history.ledgers[1].lost
