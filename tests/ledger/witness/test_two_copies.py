"""Two copies of a ledger under one witness, in random schedules of their turns.

Each copy has two processes. The turns of a step are those of a process: it reads the
witness, it commits, it writes its line, and its body runs. Any process may be next.
"""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest

from dpflow.exceptions import LedgerCorrupt, LedgerRolledBack
from dpflow.ledger.audit.reconcile import reconcile
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.witness import base
from tests.ledger.support import charged, copied, granted, make, reopen
from tests.sizes import scaled

SCHEDULES = scaled(10, push=4)


class Process:
    """A process that does steps, in turns that a schedule gives it.

    Args:
        ledger: Its copy of the ledger.
        random: Decides how many steps it does, and how they end.
    """

    def __init__(self, ledger: Ledger, random: Random) -> None:
        self.ledger, self.bodies, self.is_marked = ledger, 0, False
        self.steps = [random.random() < 0.5 for _ in range(random.randint(1, 4))]
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        watch: Any = ledger.watch
        watch.read = self.paused(watch.read)
        watch.record = self.paused(watch.record)
        self._thread = threading.Thread(target=self.work, daemon=True)
        self._thread.start()
        self.is_done = False

    def paused(self, call: Any) -> Any:
        """Return a function that waits for its turn first."""

        def wait(*values: Any, **named: Any) -> Any:
            self.pause()
            return call(*values, **named)

        return wait

    def pause(self) -> None:
        """End a turn, and wait for the next one."""
        self._stopped.release()
        assert self._go.acquire(timeout=60)

    def turn(self) -> None:
        """Let it have a turn."""
        self._go.release()
        assert self._stopped.acquire(timeout=60)

    def work(self) -> None:
        """Do steps until one is refused."""
        assert self._go.acquire(timeout=60)
        try:
            for settles in self.steps:
                charge = granted(self.ledger, "0.001")
                self.bodies += 1
                if settles:
                    self.ledger.settle(charge)
        except LedgerRolledBack as error:
            self.is_marked = "two copies" in str(error)
        finally:
            self.is_done = True
            self._stopped.release()


def play(path: Path, place: str, seed: int) -> tuple[list[list[Process]], list[Ledger]]:
    """Play a schedule; return the processes of both copies, and the copies."""
    random = Random(seed)
    with closing(make(path, place)) as ledger:
        charged(ledger, "0.001")
    paths = path, copied(path, path.with_name("twin.db"))
    copies = [[Process(reopen(p, place), random) for _ in range(2)] for p in paths]
    while living := [p for copy in copies for p in copy if not p.is_done]:
        random.choice(living).turn()
    return copies, [reopen(p, place) for p in paths]


@pytest.mark.promise("older-copy")
@pytest.mark.parametrize("seed", range(SCHEDULES))
def test_no_body_runs_on_two_copies(tmp_path, place, seed):
    """One copy at most runs bodies; after a fork both are refused until a repair."""
    copies, ledgers = play(tmp_path / "ledger.db", place, seed)
    bodies = [sum(process.bodies for process in copy) for copy in copies]
    assert min(bodies) == 0, bodies
    if any(process.is_marked for copy in copies for process in copy):
        for ledger in ledgers:
            with pytest.raises(LedgerCorrupt):
                granted(ledger, "0.001")
    stays = ledgers[bodies.index(max(bodies))]
    stays.close()
    reconcile(stays, reason="x")
    granted(stays, "0.001")
    assert verify(stays).bad == []


def test_a_line_without_a_proof_is_found(tmp_path, place, monkeypatch):
    """Control: bodies run on both copies in the first schedule if nothing is proved."""
    monkeypatch.setattr(base, "find_forked", lambda *_: [])
    copies, _ = play(tmp_path / "ledger.db", place, 0)
    assert all(sum(process.bodies for process in copy) for copy in copies)
