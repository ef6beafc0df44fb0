"""Sources of noise: OpenDP, except on the ledger of a test.

Only this module can replace noise, for one ledger at a time. That ledger must have the
environment of tests, which never changes; its journal records the noise as
`TEST_NOISE`. A ledger that governs real data has another environment.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import count
from random import Random

from dpflow.exceptions import ConfigurationError
from dpflow.interrupts import contextmanager

#: The environment of ledgers of tests.
TEST_ENVIRONMENT = "dpflow-test"
#: Journal's name of the noise that a test replaced.
TEST_NOISE = "TEST NOISE, NOT PRIVATE"
OPENDP = "opendp"
#: Journal's name of dpflow's exact draws from rational weights.
EXACT = "exact"
#: Journal's name of the noise of a step without a draw by dpflow, whose cost declares a
#: guarantee of the body's own mechanism.
SELF_DECLARED = "self-declared"
#: Journal's name of the noise of a step under `noise="own"`.
OWN = "own"


class Stream:
    """Seeded numbers for one execution of a step's body.

    Args:
        seed: Equal seeds give equal numbers.
        silent: Add nothing at all.
    """

    def __init__(self, seed: str, *, silent: bool = False) -> None:
        self._random = Random(seed)  # noqa: S311 (no private data passes here)
        self.silent = silent

    def noisy(
        self, law: str, scale: float, numbers: Sequence[int] | Sequence[float]
    ) -> list[float]:
        """Return the numbers with pseudo-random noise of the law added."""
        return [number + self._noise(law, scale) for number in numbers]

    def bytes(self, count: int) -> bytes:
        """Return pseudo-random bytes."""
        return self._random.randbytes(count)

    def _noise(self, law: str, scale: float) -> float:
        is_discrete = law.startswith("discrete")
        if self.silent:
            return 0
        if law.endswith("gaussian"):
            noise = self._random.gauss(0, scale)
            return round(noise) if is_discrete else noise
        # Both are differences of two exponentials; integers round each one down.
        first, second = (self._random.expovariate(1) * scale for _ in range(2))
        return int(first) - int(second) if is_discrete else first - second


@dataclass(slots=True, kw_only=True)
class Seeds:
    """Settings of the noise of one test's ledger.

    Attributes:
        seed: Of the whole test.
        silent: Add no noise.
    """

    seed: int = 0
    silent: bool = False
    _numbers: defaultdict[tuple[str, str], Iterator[int]] = field(
        default_factory=lambda: defaultdict(count)
    )

    def stream(self, step: str, key: str) -> Stream:
        """Return the stream of the next execution of a step.

        It does not depend on other steps, in any order.
        """
        number = next(self._numbers[step, key])
        return Stream(f"{self.seed}/{step}/{key}/{number}", silent=self.silent)


_seeds: dict[str, Seeds] = {}
_stream: ContextVar[Stream | None] = ContextVar("dpflow_stream", default=None)


def replace_noise(ledger: str, environment: str | None, seeds: Seeds) -> None:
    """Replace the noise of all steps that one ledger governs, in this process.

    Args:
        ledger: Its id.
        environment: Its recorded environment.
        seeds: Settings of later noise.

    Raises:
        ConfigurationError: If it is not a ledger of tests.
    """
    if environment != TEST_ENVIRONMENT:
        msg = (
            f"the noise of ledger {ledger} cannot be replaced: it serves "
            f"{environment!r}, and only a ledger of {TEST_ENVIRONMENT!r} may "
            "have test noise. Use the fixture dpflow_ledger."
        )
        raise ConfigurationError(msg)
    _seeds[ledger] = seeds


def restore_noise(ledger: str) -> None:
    """Let OpenDP draw again."""
    _seeds.pop(ledger, None)


def stream_for(
    ledger: str, environment: str | None, step: str, key: str
) -> Stream | None:
    """Return the test's stream that replaces OpenDP in the body of a step, or None.

    Args:
        ledger: Id of the ledger that governs the step.
        environment: Its recorded environment.
        step: Name of the step.
        key: Its release key for people.
    """
    replaced = is_replaced(ledger, environment)
    return _seeds[ledger].stream(step, key) if replaced else None


def is_replaced(ledger: str, environment: str | None) -> bool:
    """Return whether a test has replaced the noise of a ledger's steps."""
    return environment == TEST_ENVIRONMENT and ledger in _seeds


@contextmanager
def drawing(stream: Stream | None) -> Iterator[None]:
    """Draw from a stream within this block, or from OpenDP without a stream."""
    token = _stream.set(stream)
    try:
        yield
    finally:
        _stream.reset(token)


def current_stream() -> Stream | None:
    """Return the stream that replaces OpenDP in this context; None if nothing does."""
    return _stream.get()


def random_bytes(count: int) -> bytes:
    """Return the system's own random bytes, or those of a test."""
    stream = _stream.get()
    return os.urandom(count) if stream is None else stream.bytes(count)


class OneDraw:
    """The one draw that an execution's cost pays for, and its source.

    Copies of an execution share it, and so do threads of its body, by the lock.

    Args:
        own: Whether the body draws its own noise.
        stream: Replacement of OpenDP.

    Attributes:
        by: Source of the noise, for the journal.
        taken: Whether dpflow has drawn.
    """

    __slots__ = ("by", "lock", "stream", "taken")

    def __init__(self, *, own: bool = False, stream: Stream | None = None) -> None:
        self.by = OWN if own else SELF_DECLARED
        self.taken = False
        self.lock = threading.Lock()
        self.stream = stream

    def take(self, by: str = "") -> None:
        """Record the source; default: OpenDP or the test's stream. Hold the lock."""
        self.taken = True
        if by == EXACT and self.stream is not None:
            by = TEST_NOISE
        if self.by != OWN:
            self.by = by or (OPENDP if self.stream is None else TEST_NOISE)
