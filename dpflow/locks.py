"""Locks that are always released, even if an interrupt arrives at any line.

Ctrl-C, a timeout and a cancelled thread raise at any line: between the taking of a lock
and the `try` behind it, and in a `finally` before the lock is released. Therefore a
thread joins its queue before it waits, and a function that releases a lock may be
called twice, and is:

    turn = Turn()
    try:
        try:
            line.take(turn, seconds)
            ...
        finally:
            line.leave(turn)
    finally:
        line.leave(turn)

A queue passes over the turns that remain in it all the same: of a thread that has ended
or joined again, and of the parent of a forked child. No thread takes a lock that it
holds.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakSet

from dpflow.interrupts import suppress, without_interrupts

T = TypeVar("T")

#: Longest wait for a lock of a ledger, its witness or a store of people.
LOCK_SECONDS = 30.0
#: Longest rest of a waiting thread, which the thread before it shortens; first and
#: longest pause between two attempts to lock a file.
_LOOK_SECONDS, _ASK_SECONDS = 0.1, (0.0002, 0.002)


class Turn:
    """Place of a thread in a queue."""

    __slots__ = ("_bell", "_pid", "is_done", "left", "thread")

    def __init__(self) -> None:
        self.thread = threading.current_thread()
        self.left = False
        #: Whether it has left, and has called the next turn.
        self.is_done = False
        self._pid = os.getpid()
        #: Created by the first rest.
        self._bell: threading.Lock | None = None

    def call(self) -> None:
        """Wake the thread, if it rests."""
        # A thread without a bell looks once more before it rests.
        if self._bell is not None:
            # An earlier call may have released it.
            with suppress(RuntimeError):
                self._bell.release()

    def rest(self, seconds: float) -> None:
        """Wait for a call or for the time to look; the first rest creates the bell.

        A turn that ended before there was a bell could not ring it.
        """
        if self._bell is None:
            bell = threading.Lock()
            bell.acquire()
            self._bell = bell
            return
        self._bell.acquire(timeout=max(0.0, min(seconds, _LOOK_SECONDS)))

    @property
    def is_over(self) -> bool:
        """Whether its thread will not come back to it."""
        return self.left or self._pid != os.getpid() or not self.thread.is_alive()


class TurnQueue:
    """Threads of one process, each of which has its turn after those before it."""

    def __init__(self) -> None:
        # Each change of a deque is one step, between which no interrupt comes.
        self._turns: deque[Turn] = deque()

    def take(self, turn: Turn, seconds: float) -> bool:
        """Stand in the line until this turn has come; say whether it has in time."""
        turn.is_done = False
        self._turns.append(turn)
        if self._turns[0] is turn:
            return True
        until = time.monotonic() + seconds
        while not self.is_first(turn):
            remaining = until - time.monotonic()
            if remaining <= 0:
                return False
            turn.rest(remaining)
        return True

    def is_first(self, turn: Turn) -> bool:
        """Return True if it is this turn now; those that are over are taken out."""
        for first in list(self._turns):
            if first is turn:
                return True
            if not first.is_over and first.thread is not turn.thread:
                return False
            with suppress(ValueError):
                self._turns.remove(first)
        return False

    def leave(self, turn: Turn) -> None:
        """Leave the queue from any place, and call the next turn."""
        if turn.is_done:
            return
        turn.left = True
        try:
            self._turns.remove(turn)
        except without_interrupts(ValueError):
            pass
        for first in list(self._turns)[:1]:
            first.call()
        turn.is_done = True

    def run(self, work: Callable[..., T], seconds: float, *arguments: Any) -> T:
        """Do some work while no other thread of the queue does any.

        Raises:
            TimeoutError: If another thread has worked for so long.
        """
        turn = Turn()
        try:
            try:
                if not self.take(turn, seconds):
                    raise _too_long(seconds, f"thread {self.first_name()}")
                return work(*arguments)
            finally:
                self.leave(turn)
        finally:
            # An interrupt may have come before the line above.
            self.leave(turn)

    def turns(self) -> list[Turn]:
        """Return the turns in the queue, the first one first."""
        return list(self._turns)

    def is_of_this_thread(self) -> bool:
        """Return True if the first turn is one of the calling thread."""
        return [t.thread for t in self.turns()[:1]] == [threading.current_thread()]

    def first_name(self) -> str:
        """Return the name of the thread with the first turn, or "" without one."""
        return "".join(turn.thread.name for turn in self.turns()[:1])


class FileLock:
    """A file that one process at a time may lock; the kernel knows which live.

    Used by one thread at a time. The file stays open between two turns, and for the
    process that opened it only: an inherited descriptor would share the lock.

    Args:
        path: The file.
        flags: Flags of `os.open`.
    """

    #: Also of an object whose copy failed half-way.
    _file: FileIO | None = None

    def __init__(self, path: Path, flags: int = os.O_RDWR | os.O_CREAT) -> None:
        self.path = path
        self._flags = flags
        self._pid = os.getpid()
        #: Whether `take` was called since `free`, so that the lock may be held.
        self._asked = False
        #: Whether it is held since `take`, and `free` has not come to its end.
        self.is_held = False
        _file_locks.add(self)

    def take(self, until: float) -> int | None:
        """Lock the file, opened before or now.

        Args:
            until: When to give up, on the monotonic clock.

        Returns:
            Its descriptor, or None if another process held it for so long.

        Raises:
            OSError: If the file cannot be opened or locked.
        """
        pause, longest = _ASK_SECONDS
        while True:
            if self._pid != os.getpid():
                self.leave_to_parent()
            if self._file is None or self._file.closed:
                # Reached by assignment only: a file that an interrupt stops closes
                # itself.
                self._file = FileIO(str(self.path), "r+", opener=self._open_private)
            descriptor = self._file.fileno()
            # Said before it is so: an interrupt may come between the two.
            self._asked = True
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except without_interrupts(BlockingIOError):
                if time.monotonic() > until:
                    return None
                time.sleep(pause)
                pause = min(2 * pause, longest)
            else:
                try:
                    now = os.stat(self.path)  # noqa: PTH116 (before every charge)
                    if os.path.samestat(now, os.fstat(descriptor)):
                        self.is_held = True
                        return descriptor
                except without_interrupts(FileNotFoundError):
                    pass
                # Someone removed or replaced it: other processes lock a new one.
                self.close()

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
        """Unlock the file, if it may be held."""
        if not self._asked:
            return
        try:
            if self._file is not None and self._pid == os.getpid():
                fcntl.flock(self._file, fcntl.LOCK_UN)
        except without_interrupts(OSError, ValueError):
            # To close it unlocks it as well.
            self._close()
        self._asked = self.is_held = False

    def close(self) -> None:
        """Unlock the file, if it may be held, and close it."""
        self.free()
        self._close()

    def leave_to_parent(self) -> None:
        """Close what a forked child inherited; to unlock it would be for both."""
        self._close()
        self._pid, self._asked, self.is_held = os.getpid(), False, False

    def __del__(self) -> None:
        """Close the file."""
        self._close()

    def _close(self) -> None:
        # It is closed whatever the system says of it.
        with suppress(OSError):
            if self._file is not None:
                self._file.close()
        self._file = None

    def _open_private(self, path: str, _: int) -> int:
        return open_private(path, self._flags)


def open_private(path: Path | str, flags: int) -> int:
    """Open a file for this user alone.

    What root makes belongs to the owner of the file that it is named after, or of the
    folder: other users must be able to go on.
    """
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
    if flags & os.O_CREAT and os.geteuid() == 0:
        named_after = Path(path).with_suffix("")
        owner = (named_after if named_after.is_file() else named_after.parent).stat()
        with suppress(OSError):
            os.fchown(descriptor, owner.st_uid, owner.st_gid)
    return descriptor


def reason_of(error: OSError) -> str:
    """Return what the system says, with the file that it names and its owner."""
    reason, path = error.strerror or str(error), error.filename
    if path is None:
        return reason
    with suppress(OSError, LookupError):
        return f"{reason}: {path}, which belongs to {Path(path).owner()}"
    return f"{reason}: {path}"


#: All whose files a forked child inherits.
_file_locks: WeakSet[FileLock] = WeakSet()


def _leave_all_to_parent() -> None:
    for lock in list(_file_locks):
        lock.leave_to_parent()


# A copy of a descriptor that its owner's death leaves open keeps the lock held.
os.register_at_fork(after_in_child=_leave_all_to_parent)


def _too_long(seconds: float, other: str) -> TimeoutError:
    text = f"another {other} has had it for {seconds:g} s"
    return TimeoutError(errno.ETIMEDOUT, text)
