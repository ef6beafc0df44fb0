"""What belongs to the frame of a function that runs, and to what it calls.

A context variable is no such thing: threads and tasks inherit it, and what a generator
sets stays set for its caller while it waits at a `yield`. A frame is on the stack of
those alone whom it has called, awaited ones and resumed generators included.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from types import FrameType
from typing import Generic, TypeVar

T = TypeVar("T")


class Held(Generic[T]):
    """What frames hold, each for as long as a block of its own."""

    def __init__(self) -> None:
        self._by_frame: dict[FrameType, list[T]] = {}

    def hold(self, frame: FrameType | None, item: T) -> None:
        """Let a frame hold an item until it is dropped; None is no frame."""
        if frame is not None:
            self._by_frame.setdefault(frame, []).append(item)

    def drop(self, frame: FrameType | None, item: T) -> None:
        """Let a frame hold an item no more, if it does."""
        held = [] if frame is None else self._by_frame.pop(frame, [])
        rest = [each for each in held if each is not item]
        if rest and frame is not None:
            self._by_frame[frame] = rest

    def around(self) -> Iterator[T]:
        """Yield what the frames that made this call hold, innermost and last first."""
        frame = inspect.currentframe() if self._by_frame else None
        while frame is not None:
            yield from reversed(self._by_frame.get(frame, ()))
            frame = frame.f_back

    def nearest(self) -> T | None:
        """Return what the innermost frame that made this call holds, last first."""
        return next(self.around(), None)


def suspends(frame: FrameType | None) -> bool:
    """Say whether a frame is a generator's, which waits while its caller goes on.

    What it sets in a context stays set for its caller, and for good if it is closed in
    another one.
    """
    kinds = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
    return frame is not None and bool(frame.f_code.co_flags & kinds)


def entering_frame() -> FrameType | None:
    """Return the frame that enters the context manager which asks.

    What `contextlib` runs between the two is left out, `ExitStack` included.
    """
    frame = inspect.currentframe()
    for _ in ("this function", "the context manager"):
        frame = None if frame is None else frame.f_back
    while frame is not None and frame.f_code.co_filename == contextlib.__file__:
        frame = frame.f_back
    return frame
