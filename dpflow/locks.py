"""Locks that no interrupt leaves held.

Ctrl-C, a timeout and a cancelled thread raise at any line: between the taking of a lock
and the `try` behind it, and in a `finally` before the lock is given back. So here a
thread stands in its line before it waits, and whatever gives a lock back may be called
twice, and is:

    turn = Turn()
    try:
        try:
            line.take(turn, seconds)
            ...
        finally:
            line.leave(turn)
    finally:
        line.leave(turn)

What is left in a line all the same is passed over: a turn whose thread has ended or
asks again, or that a forked child inherited. No thread takes a lock that it holds.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import TypeVar
from weakref import WeakSet

T = TypeVar("T")

#: How often a thread looks whether those before it are gone; whoever leaves calls it.
_LOOK_SECONDS = 0.1
#: How often a file's lock is asked for; nobody calls.
_ASK_SECONDS = (0.0002, 0.002)


class Turn:
    """A thread's place in a line."""

    def __init__(self) -> None:
        self.thread = threading.current_thread()
        self.left = False
        #: Whether it has left, and called the next one.
        self.is_done = False
        self._pid = os.getpid()
        self._bell = threading.Lock()
        self._bell.acquire()

    def call(self) -> None:
        """Wake the thread, if it rests."""
        try:
            self._bell.release()
        except RuntimeError:
            # It was called already.
            return

    def rest(self, seconds: float) -> None:
        """Wait until somebody calls, or it is time to look."""
        self._bell.acquire(timeout=max(0.0, min(seconds, _LOOK_SECONDS)))

    @property
    def is_over(self) -> bool:
        """Whether nobody will come back to it."""
        if self.left or self._pid != os.getpid():
            return True
        return not self.thread.is_alive()


class Line:
    """Threads of one process, each of which has its turn after those before it."""

    def __init__(self) -> None:
        # Each change of a deque is one step, between which no interrupt comes.
        self._turns: deque[Turn] = deque()

    def join(self, turn: Turn) -> None:
        """Stand at the end of the line."""
        turn.is_done = False
        self._turns.append(turn)

    def take(self, turn: Turn, seconds: float) -> bool:
        """Stand in the line until this turn has come; say whether it has in time."""
        self.join(turn)
        until = time.monotonic() + seconds
        while not self.is_first(turn):
            rest = until - time.monotonic()
            if rest <= 0:
                return False
            turn.rest(rest)
        return True

    def is_first(self, turn: Turn) -> bool:
        """Say whether it is this turn now; those that are over are taken out."""
        for first in self.turns():
            if first is turn:
                return True
            if not first.is_over and first.thread is not turn.thread:
                return False
            self._remove(first)
        return False

    def leave(self, turn: Turn) -> None:
        """Step out of the line, wherever one stands, and call the next."""
        if turn.is_done:
            return
        turn.left = True
        self._remove(turn)
        for first in self.turns()[:1]:
            first.call()
        turn.is_done = True

    def turns(self) -> list[Turn]:
        """Return who stands in the line now, the first one first."""
        return list(self._turns)

    def is_of_this_thread(self) -> bool:
        """Say whether the turn of the calling thread has come."""
        first = self.turns()[:1]
        return bool(first) and first[0].thread is threading.current_thread()

    def first_name(self) -> str:
        """Return the name of the thread whose turn it is, or "" if it has just left."""
        return "".join(turn.thread.name for turn in self.turns()[:1])

    def _remove(self, turn: Turn) -> None:
        try:
            self._turns.remove(turn)
        except ValueError:
            return


class Lock:
    """What one thread at a time may do."""

    def __init__(self) -> None:
        self._line = Line()

    def run(self, work: Callable[[], T], seconds: float) -> T:
        """Do some work while no other thread does any.

        Raises:
            TimeoutError: If another thread has worked for so long.
        """
        turn = Turn()
        try:
            try:
                if not self._line.take(turn, seconds):
                    who = self._line.first_name()
                    raise _too_long(seconds, f"thread {who}")
                return work()
            finally:
                self._line.leave(turn)
        finally:
            # An interrupt may have come before the line above.
            self._line.leave(turn)


class _File(FileIO):
    """A file that closes itself when nobody has it any more, without a warning."""

    def __del__(self) -> None:
        """Close it."""
        self.close()


class FileLock:
    """A file that one process at a time may lock; the kernel knows who lives.

    Used by one thread at a time. Nothing is open while it is not held, unless it stays
    open: then for this process, and not for those that it forks.

    Args:
        path: The file.
        flags: How it is opened.
        stays_open: Whether it is opened once, for as long as it is at its path.
    """

    def __init__(
        self,
        path: Path,
        flags: int = os.O_RDWR | os.O_CREAT,
        *,
        stays_open: bool = False,
    ) -> None:
        self.path = path
        self._flags = flags
        self._file: FileIO | None = None
        self._stays_open = stays_open
        self._pid = os.getpid()
        if stays_open:
            _staying_open.add(self)
        #: Whether it is held since `take`, and `free` has not come to its end.
        self.is_held = False

    def take(self, until: float) -> int | None:
        """Open and lock the file.

        Args:
            until: When to give up, on the monotonic clock.

        Returns:
            Its descriptor, or None if another process held it for so long.

        Raises:
            OSError: If the file cannot be opened or locked.
        """
        pause, longest = _ASK_SECONDS
        while True:
            descriptor = self._open()
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > until:
                    return None
                time.sleep(pause)
                pause = min(2 * pause, longest)
            else:
                if self._is_at_its_path(descriptor):
                    self.is_held = True
                    return descriptor
                # Someone removed or replaced it: other processes lock a new one.
                self._close(unlock=True)

    def _open(self) -> int:
        if self._pid != os.getpid():
            # A fork that Python did not make, and so did not tell of.
            self.leave_to_parent()
        if self._file is None:
            # Reached by assignment only: what an interrupt stops here closes itself.
            self._file = _File(os.fspath(self.path), "r+", opener=self._opened)
        return self._file.fileno()

    def run(self, work: Callable[[int], T], seconds: float) -> T:
        """Do some work with the descriptor while no other process has the lock.

        Raises:
            TimeoutError: If another process had it for so long.
            OSError: If the file cannot be opened or locked.
        """
        try:
            try:
                descriptor = self.take(time.monotonic() + seconds)
                if descriptor is None:
                    raise _too_long(seconds, "process")
                return work(descriptor)
            finally:
                self.free()
        finally:
            # An interrupt may have come before the line above.
            self.free()

    def free(self) -> None:
        """Unlock the file, if it is open, and close it unless it stays open."""
        if self._stays_open and self._file is not None:
            with suppress(OSError, ValueError):
                fcntl.flock(self._file, fcntl.LOCK_UN)
                self.is_held = False
                return
        self._close(unlock=True)

    def leave_to_parent(self) -> None:
        """Close what a forked child inherited; to unlock it would be for both."""
        self._pid = os.getpid()
        self._close(unlock=False)

    def _close(self, *, unlock: bool) -> None:
        file = self._file
        if file is None:
            self.is_held = False
            return
        # Closing unlocks, but a child that was forked meanwhile would keep it locked.
        if unlock and not file.closed:
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_UN)
        # It is closed whatever the system says of it.
        with suppress(OSError):
            file.close()
        self._file, self.is_held = None, False

    def _opened(self, path: str, _: int) -> int:
        return os.open(path, self._flags | os.O_CLOEXEC, 0o600)

    def _is_at_its_path(self, descriptor: int) -> bool:
        try:
            there = os.stat(self.path)  # noqa: PTH116 (as of the descriptor)
        except FileNotFoundError:
            return False
        return os.path.samestat(there, os.fstat(descriptor))


#: What a forked child must not keep: the lock would outlive the parent's death.
_staying_open: WeakSet[FileLock] = WeakSet()


def _after_fork_in_child() -> None:
    for lock in list(_staying_open):
        lock.leave_to_parent()


os.register_at_fork(after_in_child=_after_fork_in_child)


def _too_long(seconds: float, other: str) -> TimeoutError:
    text = f"another {other} has had it for {seconds:g} s"
    return TimeoutError(errno.ETIMEDOUT, text)
