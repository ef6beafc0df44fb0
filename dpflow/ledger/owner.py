"""Who holds a reservation, and whether that process still lives.

A process that reserves holds a lock on a file of its own beside the ledger. The
kernel of the operating system drops the lock when the process ends, however it ends,
so a dead owner is known without clocks, leases or heartbeats. Knowing it never gives
budget back: it only tells a forfeited charge from one in progress, and frees a release
key for the next run.
"""

from __future__ import annotations

import fcntl
import os
import re
import threading
import uuid
from pathlib import Path

_PATTERN = re.compile(r"[0-9a-f]{32}")


class Owners:
    """The owner files of one ledger.

    Args:
        folder: Where the files lie; made when the first reservation is.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = Path(folder)
        self._mine: dict[int, tuple[str, int]] = {}
        self._lock = threading.Lock()

    def mine(self) -> str:
        """Return this process's owner name, taking its lock at the first call.

        Raises:
            OSError: If the file cannot be made; the caller may not reserve then.
        """
        pid = os.getpid()
        if pid not in self._mine:
            with self._lock:
                if pid not in self._mine:
                    self._mine[pid] = self._take()
        return self._mine[pid][0]

    def alive(self, owner: str) -> bool:
        """Say whether the process behind an owner name still runs."""
        mine = self._mine.get(os.getpid())
        # Opening and closing our own file would drop our lock on it.
        if mine is not None and mine[0] == owner:
            return True
        if not _PATTERN.fullmatch(owner):
            return False
        try:
            descriptor = os.open(self._folder / owner, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        except OSError:
            # Not ours to open: assume the safe answer, which keeps a claim alive.
            return True
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(descriptor)
        return False

    def _take(self) -> tuple[str, int]:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        name = uuid.uuid4().hex
        flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC
        descriptor = os.open(self._folder / name, flags, 0o600)
        # A record lock (not flock): children of a fork do not inherit it.
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        return name, descriptor

    def close(self) -> None:
        """Give up this process's name; its open reservations become forfeited."""
        mine = self._mine.pop(os.getpid(), None)
        if mine is not None:
            os.close(mine[1])
            (self._folder / mine[0]).unlink(missing_ok=True)
