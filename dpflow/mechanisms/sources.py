"""Who draws the noise: OpenDP, except on the ledger of a test.

This is the one place where noise can be replaced. It is replaced for one ledger at a
time, which must have been made for the environment of tests, for ever; what is drawn
then is journaled as `TEST_NOISE`. No ledger that governs real data is made so.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Sequence
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from random import Random
from types import TracebackType

from dpflow.accounting.costs import Cost, Gaussian, Laplace
from dpflow.exceptions import ConfigurationError

#: The environment that ledgers of tests are made for.
TEST_ENVIRONMENT = "dpflow-test"
#: What the journal says of a step whose noise a test replaced.
TEST_NOISE = "TEST NOISE, NOT PRIVATE"
OPENDP = "opendp"
#: What the journal says of a step that called nothing of dpflow to draw its noise.
SELF_DECLARED = "self-declared"
#: What it says of a step whose author declared `noise="own"`.
OWN = "own"


class Stream:
    """Seeded numbers for one execution of a step's body.

    Args:
        seed: Equal seeds give equal numbers.
        silent: Add nothing at all.
    """

    def __init__(self, seed: str, *, silent: bool = False) -> None:
        self._random = Random(seed)  # noqa: S311 (no private data passes here)
        self._silent = silent

    def noisy(
        self, mechanism: str, scale: float, numbers: Sequence[int] | Sequence[float]
    ) -> list[float]:
        """Return the numbers with pseudo-random noise of the mechanism added."""
        return [number + self._noise(mechanism, scale) for number in numbers]

    def bytes(self, count: int) -> bytes:
        """Return pseudo-random bytes."""
        return self._random.randbytes(count)

    def _noise(self, mechanism: str, scale: float) -> float:
        if self._silent:
            return 0
        if mechanism == "gaussian":
            return self._random.gauss(0, scale)
        # Both are differences of two exponentials; steps round each one down.
        first, second = (self._random.expovariate(1) * scale for _ in range(2))
        return int(first) - int(second) if mechanism == "steps" else first - second


@dataclass(slots=True, kw_only=True)
class Seeds:
    """How the noise of one test's ledger is made.

    Attributes:
        seed: Of the whole test.
        silent: Add no noise.
    """

    seed: int = 0
    silent: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _made: Counter[tuple[str, str]] = field(default_factory=Counter)

    def stream(self, step: str, key: str) -> Stream:
        """Return the stream of the next execution of a step.

        It does not depend on what other steps do meanwhile, in whatever order.
        """
        with self._lock:
            number = self._made[step, key]
            self._made[step, key] += 1
        return Stream(f"{self.seed}/{step}/{key}/{number}", silent=self.silent)


_seeds: dict[str, Seeds] = {}
_stream: ContextVar[Stream | None] = ContextVar("dpflow_stream", default=None)


def replace_noise(ledger: str, environment: str | None, seeds: Seeds) -> None:
    """Replace the noise of all steps that one ledger governs, in this process.

    Args:
        ledger: Its id.
        environment: The one that it was made for, as it says itself.
        seeds: How noise is made from now on.

    Raises:
        ConfigurationError: If it was not made for tests.
    """
    if environment != TEST_ENVIRONMENT:
        msg = (
            f"the noise of ledger {ledger} cannot be replaced: it serves "
            f"{environment!r}, and only one that was made for {TEST_ENVIRONMENT!r} may "
            "have test noise. Use the fixture dpflow_ledger."
        )
        raise ConfigurationError(msg)
    _seeds[ledger] = seeds


def restore_noise(ledger: str) -> None:
    """Let OpenDP draw again."""
    _seeds.pop(ledger, None)


class NoiseFor:
    """The source of noise while the body of a step runs, as a context manager.

    Args:
        ledger: Id of the ledger that governs the step.
        environment: The one that it was made for.
        step: Name of the step.
        key: Its release key for people.
    """

    def __init__(
        self, ledger: str, environment: str | None, step: str, key: str
    ) -> None:
        seeds = _seeds.get(ledger) if environment == TEST_ENVIRONMENT else None
        self._chosen = None if seeds is None else seeds.stream(step, key)
        self._token: Token[Stream | None] | None = None

    def __enter__(self) -> None:
        # Also where it is None: a body may run a step of another ledger.
        self._token = _stream.set(self._chosen)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._token is not None:
            _stream.reset(self._token)


def replaced_stream() -> Stream | None:
    """Return the stream that replaces OpenDP in this context; None if nothing does."""
    return _stream.get()


def drawn_by() -> str:
    """Return who draws in this context, for the journal."""
    return OPENDP if _stream.get() is None else TEST_NOISE


def random_bytes(count: int) -> bytes:
    """Return the system's own random bytes, or those of a test."""
    stream = _stream.get()
    return os.urandom(count) if stream is None else stream.bytes(count)


class OneDraw:
    """Who took the one draw that an execution's cost pays for, once it is taken.

    Copies of an execution share it, and so do threads of its body, by the lock.
    """

    __slots__ = ("by", "lock")

    def __init__(self) -> None:
        self.by = SELF_DECLARED
        self.lock = threading.Lock()

    def take(self, by: str = "") -> None:
        """Say who draws; default: whoever draws in this context. Hold the lock."""
        self.by = by or drawn_by()


_doubted: set[tuple[str, str]] = set()
_doubting = threading.Lock()


def undrawn(ledger: str, step: str, cost: Cost) -> str | None:
    """Say what to fear of a step that did not call `release`, or None if nothing.

    A mechanism that is dpflow's to draw was declared and not drawn: most likely
    `release` was forgotten, and the exact output is out. Other costs declare a
    guarantee of the body's own mechanism. It is said once for each step and process.

    Args:
        ledger: Id of the ledger that governs the step.
        step: Name of the step.
        cost: What it declared.
    """
    if not isinstance(cost, (Gaussian, Laplace)):
        return None
    with _doubting:
        if (ledger, step) in _doubted:
            return None
        _doubted.add((ledger, step))
    return (
        f"it ended without release(), so dpflow drew no noise, and {cost!r} is charged "
        "as declared. If the body added no such noise itself, its exact output is out: "
        "return release(value). If it did, declare that mechanism's guarantee, such "
        "as ZCDP, GaussianDP or PureDP, and this warning ends. (It is given once for "
        "each step and process.)"
    )
