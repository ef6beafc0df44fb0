"""Interrupts: exceptions of a signal's handler, which come at any line.

Ctrl-C, an alarm and the time limits of task queues raise what they like: a
KeyboardInterrupt, a TimeoutError, a ValueError. None of them is an error of a disk, of
a driver or of what was read. So each `except` for built-in errors names them by
`without_interrupts`, and interrupts pass on as they are:

    try:
        descriptor = os.open(path, flags)
    except without_interrupts(OSError) as error:
        ...
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from functools import partial, wraps
from types import FrameType, TracebackType
from typing import Any, ParamSpec, TypeVar, cast
from weakref import ref

P = ParamSpec("P")
T = TypeVar("T")
Kind = TypeVar("Kind", bound=BaseException)


def is_interrupt(error: BaseException | None) -> bool:
    """Return True if the handler of a signal raised an exception."""
    return find_interrupted_frame(error) is not None


def find_interrupted_frame(error: BaseException | None) -> FrameType | None:
    """Return the frame at which a signal's handler raised an exception, if one did.

    Python calls a handler with the frame that it interrupts, as no other function is.
    """
    # The class of an error may hide what Python keeps.
    entry: TracebackType | None = (
        None if error is None else vars(BaseException)["__traceback__"].__get__(error)
    )
    while entry and (inner := entry.tb_next):
        # No function of dpflow handles a signal.
        if not str(inner.tb_frame.f_globals.get("__name__")).startswith("dpflow."):
            names, varargs, _, values = inspect.getargvalues(inner.tb_frame)
            arguments = [*map(values.get, names), *values.get(varargs or "", ())]
            if any(value is entry.tb_frame for value in arguments):
                return entry.tb_frame
        entry = inner
    return None


def without_interrupts(*kinds: type[Kind]) -> tuple[type[Kind], ...]:
    """Return what an `except` handles of these kinds: nothing, of an interrupt.

    The system numbers its errors: an OSError without a number is an interrupt, too.
    Where every `Exception` is handled, it may be one of the user's code.
    """
    error = sys.exception()
    if Exception not in kinds and issubclass(type(error), OSError):
        is_numbered = vars(OSError)["errno"].__get__(error) is not None
        return kinds if is_numbered and not is_interrupt(error) else ()
    return () if is_interrupt(error) else kinds


class suppress:  # noqa: N801 (as that of contextlib)
    """As `contextlib.suppress`; interrupts pass on."""

    def __init__(self, *kinds: type[Exception]) -> None:
        self._kinds = kinds

    def __enter__(self) -> None:
        """Begin the block."""

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        """Suppress what an `except` would handle."""
        is_handled = kind is not None and issubclass(kind, self._kinds)
        return is_handled and without_interrupts(*self._kinds) != ()


def contextmanager(
    function: Callable[P, Iterator[T]],
) -> Callable[P, AbstractContextManager[T]]:
    """As `contextlib.contextmanager`, for blocks that hold something.

    An interrupt at the begin of a Python `__exit__` prevents the end of the block, and
    its traceback keeps the frame of that `__exit__`. Here this frame does not keep the
    generator, which ends and gives up what it holds even if the exception is kept.
    """

    @wraps(function)
    def block(*args: P.args, **kwargs: P.kwargs) -> Any:
        return _Block(cast("Generator[Any, Any, Any]", function(*args, **kwargs)))

    return block


class _Special:
    """A method of a block, looked up by a `with` statement or an ExitStack."""

    def __init__(self, method_of: Callable[[_Block], Callable[..., Any]]) -> None:
        self._method_of = method_of

    def __get__(self, block: _Block | None, _: object) -> Callable[..., Any]:
        if block is None:
            return lambda block, *error: self._method_of(block)(*error)
        return self._method_of(block)


def _end_of(block: _Block) -> Callable[..., Any]:
    end = partial(_end, ref(block.generator))
    # Only the `with` statement keeps the generator.
    vars(end)["generator"] = block.generator
    return end


class _Block:
    """A block of a `with` statement: what a generator does around its `yield`."""

    def __init__(self, generator: Generator[Any, Any, Any]) -> None:
        self.generator = generator

    __enter__ = _Special(lambda block: block.generator.__next__)
    __exit__ = _Special(_end_of)


def _end(
    generator: Callable[[], Any],
    _: object,
    error: BaseException | None,
    traceback: TracebackType | None,
) -> bool:
    """Go on with a generator behind its `yield`, with the error of the block if any.

    Raises:
        RuntimeError: If it yields once more.
    """
    if generator() is None:
        # The generator around the block was given up, and the block with it.
        return False
    try:
        # No local keeps the generator: a traceback would keep it, too.
        if error is None:
            next(generator())
        else:
            generator().throw(error)
    except StopIteration as stop:
        return stop is not error
    except BaseException as raised:
        # A generator raises a RuntimeError in the place of a StopIteration.
        is_end = issubclass(type(error), StopIteration)
        same = raised.__cause__ if is_end else raised
        if error is None or same is not error:
            raise
        BaseException.with_traceback(error, traceback)
        return False
    msg = "the generator of a block yields once"
    raise RuntimeError(msg)
