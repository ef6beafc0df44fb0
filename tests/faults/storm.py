"""Processes that use a ledger until they are killed, and their reports."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from random import Random

from dpflow import PureDP
from dpflow.exceptions import BudgetRefused
from dpflow.ledger.opening import open_ledger
from dpflow.policy import Policy
from tests.faults.auditor import Facts
from tests.ledger.processes import Child
from tests.ledger.support import make_policy, request

WORKERS = 8
#: What a worker says before and after each thing that it does.
WORDS = ("begins", "granted", "voids", "void", "settled")
COST = PureDP(epsilon="0.001")
POLICY = make_policy(budget="{epsilon: 0.3}")


class Notes:
    """What all workers have said."""

    def __init__(self) -> None:
        self.words: dict[str, set[str]] = {word: set() for word in WORDS}

    def hear(self, lines: list[str]) -> None:
        """Take down what one worker said; its last line may be torn."""
        for line in lines:
            word, _, name = line.partition(" ")
            if word in WORDS and len(name) == 32:
                self.words[word].add(name)

    def check(self, facts: Facts) -> None:
        """Compare what was said with what is in the ledger."""
        said, states = self.words, facts.states
        assert said["granted"] <= set(states), "an acknowledged reservation is lost"
        assert set(states) <= said["begins"], "charged without a request"
        assert {states[name] for name in said["settled"]} <= {"settled"}
        assert {states[name] for name in said["void"]} <= {"void"}
        voids = {name for name, state in states.items() if state == "void"}
        assert voids <= said["voids"], "given back unasked"


def work(url: str, policy: Policy, say: Callable[[str], None]) -> None:
    """Reserve and settle, or void, until the budget is exhausted."""
    ledger, chance = open_ledger(url), Random()
    while True:
        made = request(ledger, COST, policies=[policy])
        name = made.reservation
        say(f"begins {name}")
        try:
            ledger.reserve(made)
        except BudgetRefused:
            return
        say(f"granted {name}")
        if chance.random() < 0.05:
            say(f"voids {name}")
            ledger.void(name, reason="test")
            say(f"void {name}")
        else:
            ledger.settle(name)
            say(f"settled {name}")


def storm(url: str, policy: Policy, *, kills: int, seed: int) -> tuple[Notes, int]:
    """Keep workers running, kill one every few milliseconds, then let all finish."""

    def start() -> Child:
        return Child(lambda say: work(url, policy, say))

    chance, notes = Random(seed), Notes()
    workers = [start() for _ in range(WORKERS)]
    killed = 0
    for _ in range(kills):
        time.sleep(chance.random() * 0.1)
        number = chance.randrange(WORKERS)
        os.kill(workers[number].pid, signal.SIGKILL)
        killed += ended(workers[number], notes) == -signal.SIGKILL
        workers[number] = start()
    for worker in workers:
        assert ended(worker, notes) == 0
    return notes, killed


def ended(child: Child, notes: Notes) -> int:
    """Hear a worker to its end; an error of its own is a failure."""
    code, lines = child.end()
    assert code in {-signal.SIGKILL, 0}, "\n".join(lines)
    notes.hear(lines)
    return code
