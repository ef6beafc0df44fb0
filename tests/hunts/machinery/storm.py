"""Processes that use a ledger until they are killed, and what they told before."""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from dpflow import PureDP
from dpflow.exceptions import BudgetRefused
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.opening import open_ledger
from dpflow.policy import Policy
from tests.ledger.auditor import Facts
from tests.ledger.processes import Child
from tests.ledger.support import granted, request

WORKERS = 8
#: What a worker says before and after each thing that it does.
WORDS = {"begins", "granted", "voids", "void", "settled"}


@dataclass
class Told:
    """What all workers have said."""

    words: dict[str, set[str]] = field(
        default_factory=lambda: {word: set() for word in WORDS}
    )
    refused: int = 0

    def hear(self, lines: list[str]) -> None:
        """Take down what one worker said; its last line may be torn."""
        for line in lines:
            word, _, name = line.partition(" ")
            if word == "refused":
                self.refused += 1
            elif word in WORDS and len(name) == 32:
                self.words[word].add(name)

    def check(self, facts: Facts) -> None:
        """Compare what was said with what is in the ledger."""
        said, states = self.words, facts.states
        assert said["granted"] <= set(states), "an acknowledged reservation is lost"
        assert set(states) <= said["begins"], "charged for what nobody asked"
        for name in said["settled"]:
            assert states[name] == "settled", "an acknowledged settlement is lost"
        for name in said["void"]:
            assert states[name] == "void", "an acknowledged void is lost"
        for name, state in states.items():
            assert state != "void" or name in said["voids"], "given back unasked"


def work(
    ledger: Ledger, policy: Policy, cost: PureDP, say: Callable[[str], None]
) -> None:
    """Reserve and settle, or void, until the budget is gone."""
    chance = Random()
    while True:
        made = request(ledger, cost, policies=[policy], reservation=uuid.uuid4().hex)
        name = made.reservation
        say(f"begins {name}")
        try:
            ledger.reserve(made)
        except BudgetRefused:
            say("refused")
            return
        say(f"granted {name}")
        if chance.random() < 0.05:
            say(f"voids {name}")
            ledger.void(name, reason="test")
            say(f"void {name}")
        else:
            ledger.settle(name)
            say(f"settled {name}")


def storm(
    start: Callable[[Callable[[str], None]], None],
    *,
    seconds: float,
    seed: int,
    told: Told,
) -> Counter[str]:
    """Keep eight workers running and kill one every few milliseconds."""
    chance, counts = Random(seed), Counter[str]()
    workers = [Child(start) for _ in range(WORKERS)]
    end = time.monotonic() + seconds
    while time.monotonic() < end or counts["kills"] < WORKERS:
        time.sleep(chance.random() * 0.01)
        number = chance.randrange(WORKERS)
        counts["kills"] += 1
        told.hear(killed(workers[number]))
        workers[number] = Child(start)
    for worker in workers:
        told.hear(killed(worker))
    counts["granted"] = len(told.words["granted"])
    counts["settled"] = len(told.words["settled"])
    return counts


def killed(child: Child) -> list[str]:
    """Kill a worker and return what it has said; an error of its own is a failure."""
    os.kill(child.pid, signal.SIGKILL)
    code, lines = child.end()
    assert code in {-9, 0}, "\n".join(lines)
    return lines


def drain(url: str, policy: Policy, cost: Any) -> list[str]:
    """Use up what is left, in peace; return the ids."""
    ledger, names = open_ledger(url), list[str]()
    while True:
        try:
            names.append(granted(ledger, cost, policies=[policy]))
        except BudgetRefused:
            ledger.close()
            return names
