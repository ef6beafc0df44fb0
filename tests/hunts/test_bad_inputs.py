"""A million bad inputs: none is accepted, and the ledger does not move."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from fractions import Fraction
from typing import Any

import pytest

from dpflow import PureDP
from dpflow.accounting.costs import notions
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import DpflowError, InvalidCost
from dpflow.ledger.ledger import Ledger
from tests.hunts.machinery.bad_inputs import Fuzz
from tests.hunts.machinery.memory import MemoryStorage, tables_in_memory
from tests.hunts.machinery.support import (
    SimulatedOwners,
    figure,
    first_seed,
    replace_everywhere,
    shared_out,
)
from tests.ledger.support import granted
from tests.sizes import scaled

BATCH = 1000
#: What a refusal may be: dpflow's own words, or Python's for a tally's text.
REFUSALS: dict[str, tuple[type[Exception], ...]] = {
    "tally": (ValueError, TypeError, RecursionError),
    "vector": (ValueError,),
}


def fuzz(seed: int) -> Counter[str]:
    """Send a thousand bad inputs; count what was accepted or badly refused."""
    connection = tables_in_memory()
    owners: Any = SimulatedOwners(set())
    ledger = Ledger(MemoryStorage(connection), owners)
    granted(ledger, PureDP(epsilon=0.1))
    before = list(connection.iterdump())
    stream, counts = Fuzz(seed, ledger), Counter[str]()
    for _ in range(BATCH):
        kind, value, send = stream.one()
        counts["sent"] += 1
        try:
            send()
        except REFUSALS.get(kind, (DpflowError,)):
            continue
        except Exception as error:
            what, told = "crashed", repr(error)
        else:
            what, told = "accepted", ""
        counts[what] += 1
        if counts[what] == 1:
            print(f"seed {seed}: {kind} {value!r:.80} {what} {told:.200}")
    counts["ledgers moved"] = before != list(connection.iterdump())
    return counts


def fuzz_all(start: int, inputs: int) -> Counter[str]:
    """Send so many bad inputs."""

    def work(part: range) -> Counter[str]:
        return sum((fuzz(seed) for seed in part), Counter())

    return shared_out(work, range(start, start + inputs // BATCH))


def test_no_bad_input_is_accepted() -> None:
    """Types, NaN, 2^62, NUL, surrogates and ids of a megabyte."""
    start, inputs = first_seed(), scaled(20_000)
    counts = fuzz_all(start, inputs)
    figure("bad inputs", first_seed=start, accepted=0, **counts)
    assert counts == {"sent": inputs // BATCH * BATCH}


# Controls


def unchecked_names(patch: pytest.MonkeyPatch) -> None:
    """Take any name."""
    replace_everywhere(patch, "_check", lambda _: lambda *_: None)


def lax_numbers(patch: pytest.MonkeyPatch) -> None:
    """Take every number as it is."""

    def take(value: Any) -> Fraction:
        if isinstance(value, int | float):
            with suppress(ValueError, OverflowError):
                return Fraction(value)
        raise InvalidCost

    patch.setattr(notions, "exact_epsilon", take)


def lax_tallies(patch: pytest.MonkeyPatch) -> None:
    """Take whatever is not negative."""

    def check(self: Tally) -> None:
        if any(amount < 0 for amount in self.amounts):
            raise ValueError

    patch.setattr(Tally, "__post_init__", check)


@pytest.mark.parametrize("control", [unchecked_names, lax_numbers, lax_tallies])
def test_a_missing_check_is_found(
    control: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same inputs find each check that is not there."""
    control(monkeypatch)
    assert fuzz_all(first_seed(), 10 * BATCH)["accepted"] > 0
