"""Running bodies of DP steps: from which of them a call comes.

A body is identified by the frame that runs it, which is on the stack of its own calls
alone, awaited ones and resumed generators included. A context variable tells more:
threads and tasks inherit it, and what a generator sets stays set for its caller while
it waits at a `yield`. So frames say whose noise a call may draw, and both say whether a
call comes from code that has read private data.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import sys
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from types import FrameType
from typing import Any

from dpflow import interrupts
from dpflow.exceptions import PublicError
from dpflow.interrupts import contextmanager, suppress

#: A thread, and the task of its event loop if there is one.
Home = tuple[threading.Thread, object]
#: Executions by the frames that run their bodies, the innermost one last.
_running: dict[FrameType, list[Any]] = {}
#: Executions that this context comes from, outermost first.
_inherited: ContextVar[tuple[Any, ...]] = ContextVar("dpflow_around", default=())
_WAITING = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR


def home() -> Home:
    """Return the thread and the task that make this call."""
    # `current_task` raises where no loop runs, at each step of a plain program.
    loop = asyncio._get_running_loop()  # noqa: SLF001 (documented)
    task = None if loop is None else asyncio.current_task(loop)
    return threading.current_thread(), task


@contextmanager
def running(frame: FrameType | None, execution: Any) -> Iterator[None]:
    """Let a frame run the body of an execution in this block.

    A generator sets no context: that would stay set for its caller, and for good if it
    is closed in another one.
    """
    token = None
    try:
        if frame is None or not frame.f_code.co_flags & _WAITING:
            token = _inherited.set((*_inherited.get(), execution))
        if frame is not None:
            _running.setdefault(frame, []).append(execution)
        yield
    finally:
        bodies = [] if frame is None else _running.pop(frame, [])
        others = [body for body in bodies if body is not execution]
        if others and frame is not None:
            _running[frame] = others
        if token is not None:
            with suppress(ValueError):
                _inherited.reset(token)


def calling_bodies() -> Iterator[Any]:
    """Yield the executions around this call, innermost first."""
    frame = inspect.currentframe() if _running else None
    while frame is not None:
        yield from reversed(_running.get(frame, ()))
        frame = frame.f_back


def current_body() -> Any:
    """Return the nearest execution from whose body this call comes, if any.

    Threads and tasks that copied the body's context count; plain threads and other
    processes do not.
    """
    body = next(calling_bodies(), None)
    if body is None and (inherited := _inherited.get()):
        # In the body's own thread and task its frame tells.
        here = home()
        body = next(
            (execution for execution in reversed(inherited) if execution.home != here),
            None,
        )
    return body


def check_outside(what: str = "a DP step") -> None:
    """Refuse a call or a declaration inside the body of a step.

    Args:
        what: The declaration, for the message; default: an inner step, whose name
            could contain private data.

    Raises:
        PublicError: In the body of a step. The error names the outer step only.
    """
    if (outer := current_body()) is not None:
        msg = (
            f"{what} was called inside the body of DP step {outer.request.step!r}, and "
            "was refused without a charge. A body has read private data, and the "
            "ledger and Prefect would show it by a name, cost or error. Define steps "
            "at the top of a module, call them one after another, and pass the "
            "released value from one to the next."
        )
        raise PublicError(msg)


def entering_frame() -> FrameType | None:
    """Return the frame that enters the context manager that makes this call.

    The frames of context managers between the two do not count, `ExitStack` included.
    """
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001
    between = (contextlib.__file__, interrupts.__file__)
    while frame is not None and frame.f_code.co_filename in between:
        frame = frame.f_back
    return frame
