"""What a signal's handler raises is never taken for an error of what it interrupts."""

from __future__ import annotations

import errno
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from types import FrameType, MethodType
from typing import Any

import pytest

from dpflow.interrupts import contextmanager, suppress, without_interrupts
from dpflow.locks import FileLock, Turn, TurnQueue

pytestmark = pytest.mark.quick

KINDS = (
    ValueError("x"),
    KeyError("x"),
    OSError(errno.EIO, "x"),
    TimeoutError(),
    OSError(),
)


def stop(error: Exception, *_: object) -> None:
    """Raise the error."""
    raise error


def of_function(error: Exception) -> Callable[..., None]:
    """Return a handler that is no method."""
    return lambda *_: stop(error)


@pytest.fixture(params=[of_function, lambda error: MethodType(stop, error)])
def interrupt(request: pytest.FixtureRequest) -> Iterator[Callable[..., None]]:
    """Give a function that is interrupted by an error."""
    before = signal.getsignal(signal.SIGUSR1)

    def interrupted(error: Exception) -> None:
        signal.signal(signal.SIGUSR1, request.param(error))
        signal.raise_signal(signal.SIGUSR1)

    yield interrupted
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("error", KINDS, ids=repr)
def test_an_except_and_suppress_pass_an_interrupt_on(interrupt, error):
    """It is the same object, of whatever kind it is."""

    def excepts() -> None:
        try:
            interrupt(error)
        except without_interrupts(OSError, ValueError, LookupError):
            pass

    def suppresses() -> None:
        with suppress(OSError, ValueError, LookupError):
            interrupt(error)

    for work in (excepts, suppresses):
        with pytest.raises(type(error)) as raised:
            work()
        assert raised.value is error


def test_errors_of_calls_are_handled(tmp_path):
    """Those of the system have a number, and those of the user's code need none."""

    def fails() -> None:
        raise TimeoutError

    for work in ((tmp_path / "none").stat, lambda: int("x")):
        with suppress(OSError, ValueError):
            work()
    with suppress(Exception):
        fails()
    with pytest.raises(TimeoutError), suppress(OSError):
        fails()


def test_locks_pass_an_interrupt_on_and_are_free(interrupt, tmp_path):
    """Also where an error of the same kind means that nothing is to be done."""
    for error in KINDS:
        queue, lock = TurnQueue(), FileLock(tmp_path / "lock")
        for run in (queue.run, lock.run):
            with pytest.raises(type(error)) as raised:
                run(lambda *_, error=error: interrupt(error), 1)
            assert raised.value is error
        assert queue.take(Turn(), 0)
        assert lock.take(0) is not None
        lock.close()


# Blocks


@contextmanager
def block(ends: list[str]) -> Iterator[str]:
    """Note the end of a block."""
    try:
        yield "entered"
    except KeyError:
        ends.append("handled")
    finally:
        ends.append("ended")


@pytest.mark.parametrize("error", [None, KeyError(), ValueError(), StopIteration()])
@pytest.mark.parametrize("by_stack", [True, False])
def test_a_block_is_one_of_contextlib(error, by_stack):
    """It enters, ends, handles or passes on, in a `with` and in an ExitStack."""
    ends, passed = list[str](), None
    try:
        with ExitStack() as stack, nullcontext() if by_stack else block(ends) as given:
            assert (given or stack.enter_context(block(ends))) == "entered"
            if error is not None:
                raise error
    except (ValueError, StopIteration) as raised:
        passed = raised
    handled = isinstance(error, KeyError)
    assert passed is (None if handled else error)
    assert ends == (["handled"] if handled else []) + ["ended"]


def test_a_block_ends_although_its_end_is_interrupted_and_the_interrupt_kept():
    """The kept traceback has the frame that was interrupted, and not the block's."""
    ends = list[str]()

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_name == "_end" and event == "line":
            raise IndexError
        return trace

    def work() -> None:
        with block(ends):
            sys.settrace(trace)

    with pytest.raises(IndexError) as kept:
        work()
    assert ends == ["ended"]
    assert kept.value.__traceback__ is not None
