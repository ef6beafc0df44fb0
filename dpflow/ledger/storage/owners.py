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
import uuid
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Protocol

from dpflow.exceptions import LedgerUnavailable
from dpflow.locks import Lock

#: How long a thread may take to take or give up a name.
_THREAD_SECONDS = 60.0
_PATTERN = re.compile(r"[0-9a-f]{32}")
#: At most so many files are looked at when a process takes its name.
_SWEEP = 1000


class Liveness(Protocol):
    """Who this process is for a ledger, and which others still live."""

    def mine(self) -> str:
        """Return this process's owner name, taking its lock at the first call."""

    def alive(self, owner: str) -> bool:
        """Say whether the process behind an owner name still runs."""

    def close(self) -> None:
        """Give up this process's name; its open reservations become forfeited."""


#: The names whose files this process keeps locked, over all its `Owners`. Record locks
#: belong to a process: opening and closing such a file again would drop its lock. A
#: forked child holds none of its parent's.
_names: set[str] = set()
_lock = Lock()
os.register_at_fork(after_in_child=_names.clear)


class Owners:
    """The owner files of one ledger.

    Args:
        folder: Where the files lie; made when the first reservation is.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = Path(folder).absolute()
        self._mine: tuple[str, int] | None = None

    def mine(self) -> str:
        """Return this process's owner name, taking its lock at the first call.

        Raises:
            OSError: If the file cannot be made; the caller may not reserve then.
        """
        return _lock.run(self._known, _THREAD_SECONDS)

    def _known(self) -> str:
        # In a forked child, the name that this object knows is its parent's.
        if self._mine is None or self._mine[0] not in _names:
            self._mine = self._take()
        return self._mine[0]

    def alive(self, owner: str) -> bool:
        """Say whether the process behind an owner name still runs.

        Raises:
            LedgerUnavailable: If the system does not say.
        """
        if owner in _names:
            return True
        if not _PATTERN.fullmatch(owner):
            return False
        try:
            # Who may only look can tell as well.
            descriptor = os.open(self._folder / owner, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        except OSError:
            # Not ours to open: assume the safe answer, which keeps a claim alive.
            return True
        try:
            # Shared, so that two who ask about the same dead owner both hear so.
            fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            # Systems differ in how they say that another process holds it.
            return True
        except OSError as error:
            msg = (
                "cannot tell whether the process that holds a charge lives: a lock in "
                f"{self._folder} was answered by {error.strerror!r}. The step did not "
                "run; try again when that file system gives locks."
            )
            raise LedgerUnavailable(msg, ledger=str(self._folder)) from error
        finally:
            os.close(descriptor)
        return False

    def _take(self) -> tuple[str, int]:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._sweep()
        name = uuid.uuid4().hex
        flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC
        born = self._folder / f"{name}.new"
        descriptor = os.open(born, flags, 0o600)
        try:
            # A record lock (not flock): children of a fork do not inherit it.
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(descriptor, f"{os.getpid()}\n".encode())
            # Under its name it was never seen without the lock, as if its owner were
            # dead.
            born.rename(self._folder / name)
        except OSError:
            os.close(descriptor)
            born.unlink(missing_ok=True)
            raise
        _names.add(name)
        return name, descriptor

    def _sweep(self) -> None:
        """Remove the files of the dead, which killed processes leave.

        No answer changes by it: a name is never used again, and one without a file is
        as dead as one whose file nobody holds. Their charges stay held.
        """
        with suppress(OSError, LedgerUnavailable), os.scandir(self._folder) as files:
            for file in islice(files, _SWEEP):
                if _PATTERN.fullmatch(file.name) and not self.alive(file.name):
                    (self._folder / file.name).unlink(missing_ok=True)

    def close(self) -> None:
        """Give up this process's name; its open reservations become forfeited."""
        _lock.run(self._give_up, _THREAD_SECONDS)

    def _give_up(self) -> None:
        mine, self._mine = self._mine, None
        if mine is not None and mine[0] in _names:
            _names.remove(mine[0])
            os.close(mine[1])
            (self._folder / mine[0]).unlink(missing_ok=True)
