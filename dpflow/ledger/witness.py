"""The witness: a file outside the ledger that remembers each charge.

A restored backup, a copy or a file whose log was lost verifies perfectly; only
something outside of it can tell that it forgot a charge. So each reservation is told
here after its commit and before its step may start. Lines are only ever appended:

    ledger_id account seq hash used_after asked reservation run crc

A crash may leave part of a line at the end; the step behind it never started, so it is
ignored. Any other line that does not fit its checksum is damage, and fails closed.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dpflow.config import NO_WITNESS, WITNESS_VARIABLE
from dpflow.exceptions import (
    ConfigurationError,
    LedgerCorrupt,
    LedgerUnavailable,
    LedgerUnwitnessed,
)
from dpflow.ledger.witness_lines import (
    Header,
    Line,
    Signature,
    cut_torn,
    signature,
    sync,
    sync_folder,
    write,
)

#: Beyond this the file is rewritten with fewer lines.
_LARGE = 2**20
#: How many lines a rewritten file keeps, besides the newest of each account.
_KEPT = 1000


@dataclass(frozen=True, slots=True)
class Unseen:
    """Lines that were not compared with the ledger yet, and where they end."""

    lines: tuple[Line, ...]
    signature: Signature
    offset: int


@dataclass(slots=True)
class _Seen:
    """What was read and found to be in the ledger."""

    signature: Signature = (0, 0, 0, 0)
    offset: int = 0
    header: Header | None = None
    newest: dict[str, Line] = field(default_factory=dict)
    latest: tuple[str, ...] = ()

    def note(self, lines: Iterable[Line]) -> None:
        """Remember the newest line of each account, and who came last."""
        for line in lines:
            known = self.newest.get(line.account)
            if known is None or known.seq <= line.seq:
                self.newest[line.account] = line
            self.latest = (line.account,)


class Witness:
    """The witness file of one ledger.

    Args:
        path: The file; `enrol` makes it.
        ledger: Id of the ledger.
    """

    def __init__(self, path: Path, ledger: str) -> None:
        self.path = path
        self.ledger = ledger
        self._seen = _Seen()
        self._large = _LARGE
        self._lock, self._pid = threading.RLock(), os.getpid()

    @property
    def epoch(self) -> int:
        """How many repairs the ledger had when the file was begun."""
        header = self._seen.header
        return 0 if header is None else header.epoch

    @property
    def newest(self) -> dict[str, Line]:
        """The newest line of each account that was compared."""
        return self._seen.newest

    @property
    def latest(self) -> tuple[str, ...]:
        """The accounts that were told last."""
        return self._seen.latest

    # Reading

    def exists(self) -> bool:
        """Say whether there is a file.

        Raises:
            LedgerUnavailable: If its folder cannot be searched.
        """
        try:
            return self._stat() is not None
        except OSError as error:
            raise self._unavailable(error, "read") from error

    def unseen(self) -> Unseen:
        """Read what was appended since `accept`.

        Raises:
            LedgerUnwitnessed: If there is no file.
            LedgerCorrupt: If it is damaged or another ledger's.
            LedgerUnavailable: If it cannot be read.
        """
        with self._mine():
            try:
                now = self._stat()
                if now is None:
                    raise self._missing()
                if now == self._seen.signature:
                    return Unseen((), now, self._seen.offset)
                return self._read(now)
            except OSError as error:
                raise self._unavailable(error, "read") from error

    def accept(self, unseen: Unseen) -> None:
        """Remember that these lines are in the ledger."""
        with self._mine():
            seen = self._seen
            seen.signature, seen.offset = unseen.signature, unseen.offset
            seen.note(unseen.lines)

    def all_lines(self) -> tuple[Line, ...]:
        """Read the whole file; raises as `unseen`."""
        with self._mine():
            self._seen = _Seen()
            return self.unseen().lines

    @property
    def whole(self) -> bool:
        """Whether the file still has every line that was ever written."""
        header = self._seen.header
        return header is not None and header.whole

    def _read(self, now: Signature) -> Unseen:
        """Read what is new; all of it if it is not the file that was read before."""
        if self._seen.signature[2] >= now[2]:
            self._seen = _Seen()
        with self.path.open("rb") as file:
            first = file.readline()
            header = self._read_header(first)
            if header != self._seen.header:
                self._seen = _Seen(header=header)
            start = max(self._seen.offset, len(first))
            file.seek(start)
            data = file.read()
        # Part of a line is a crash before its step could start.
        data = data[: data.rfind(b"\n") + 1]
        lines = data.decode("ascii", "replace").split("\n")[:-1]
        found = tuple(self._parsed(line) for line in lines)
        return Unseen(found, now, start + len(data))

    def _read_header(self, line: bytes) -> Header:
        header = Header.from_text(line.decode("ascii", "replace").rstrip("\n"))
        if header is None:
            what = "its first line is no witness's"
            raise self._damaged(what)
        if header.ledger != self.ledger:
            what = f"it is the witness of ledger {header.ledger}"
            raise self._damaged(what)
        return header

    def _parsed(self, text: str) -> Line:
        line = Line.from_text(text, self.ledger)
        if line is None:
            what = f"a line does not fit its checksum: {text[:60]!r}"
            raise self._damaged(what)
        return line

    # Writing

    def append(self, lines: Sequence[Line]) -> None:
        """Append lines, durably.

        Raises:
            LedgerUnwitnessed: If there is no file.
            LedgerUnavailable: If they cannot be written; no step may start then.
        """
        text = "".join(line.to_text(self.ledger) for line in lines).encode()
        with self._mine():
            try:
                with self._locked() as descriptor:
                    end = cut_torn(descriptor)
                    write(descriptor, text)
                    sync(descriptor)
                    self._note_own(descriptor, end, lines)
            except OSError as error:
                raise self._unavailable(error, "write") from error

    def _note_own(self, descriptor: int, end: int, lines: Sequence[Line]) -> None:
        """Remember own lines, which were just committed, unless others came before."""
        seen, now = self._seen, signature(os.fstat(descriptor))
        if seen.offset == end and seen.signature[:2] == now[:2]:
            seen.signature, seen.offset = now, now[2]
            seen.note(lines)
            seen.latest = tuple(line.account for line in lines)

    def enrol(self, epoch: int, lines: Sequence[Line], *, anew: bool = False) -> None:
        """Begin the file with what the ledger holds now.

        Args:
            epoch: The ledger's count of repairs.
            lines: The head of each account.
            anew: Replace a file; the old one is kept beside it.

        Raises:
            LedgerUnavailable: If the file cannot be written.
            ConfigurationError: If there is one, and `anew` is not said.
        """
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            header = Header(ledger=self.ledger, epoch=epoch, whole=True)
            if self._stat() is None:
                self._rewrite(header, lines)
                return
            if not anew:
                msg = f"there is a witness at {self.path} already"
                raise ConfigurationError(msg)
            with self._locked():
                self._keep_old()
                self._rewrite(header, lines)
        except OSError as error:
            raise self._unavailable(error, "write") from error

    def compact(self) -> None:
        """Rewrite a large file with fewer lines; all were compared with the ledger."""
        with self._mine():
            if self._seen.offset < self._large:
                return
            try:
                with self._locked():
                    if self.unseen().lines:
                        return
                    every = self._read_all()
                    newest = set(self._seen.newest.values())
                    older = [line for line in every[:-_KEPT] if line in newest]
                    header = Header(ledger=self.ledger, epoch=self.epoch, whole=False)
                    self._rewrite(header, [*dict.fromkeys(older), *every[-_KEPT:]])
            except OSError as error:
                raise self._unavailable(error, "write") from error
            fresh = self.unseen()
            self.accept(fresh)
            self._large = max(_LARGE, 2 * fresh.offset)

    def _read_all(self) -> list[Line]:
        text = self.path.read_bytes().decode("ascii", "replace")
        return [self._parsed(line) for line in text.split("\n")[1:-1]]

    def _rewrite(self, header: Header, lines: Iterable[Line]) -> None:
        """Put a new file in the place of the old one, or the old one stays."""
        text = header.to_text() + "".join(line.to_text(self.ledger) for line in lines)
        fresh = self.path.with_name(f"{self.path.name}.{os.getpid()}.new")
        descriptor = os.open(fresh, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
        try:
            write(descriptor, text.encode())
            sync(descriptor)
        finally:
            os.close(descriptor)
        fresh.replace(self.path)
        sync_folder(self.path.parent)

    def _keep_old(self) -> None:
        number = 1
        while (kept := self.path.with_name(f"{self.path.name}.{number}")).exists():
            number += 1
        os.link(self.path, kept)

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Open the file for appending and keep other writers away."""
        while True:
            try:
                descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
            except FileNotFoundError:
                raise self._missing() from None
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                found = self._stat()
                if found and found[:2] == signature(os.fstat(descriptor))[:2]:
                    yield descriptor
                    return
            finally:
                os.close(descriptor)

    @contextmanager
    def _mine(self) -> Iterator[None]:
        """Keep other threads of this process away."""
        if self._pid != os.getpid():
            # Another thread may have held it at the fork, for ever in this child.
            self._lock, self._pid = threading.RLock(), os.getpid()
        with self._lock:
            yield

    def _stat(self) -> Signature | None:
        try:
            return signature(self.path.stat())
        except FileNotFoundError:
            return None

    def _missing(self) -> LedgerUnwitnessed:
        msg = (
            f"there is no witness at {self.path}, so nothing outside the ledger "
            f"{self.ledger} says that it forgot no charge. Restore that file, or set "
            "DPFLOW_WITNESS to the folder where it is. On a new machine, and after "
            "checking what the ledger holds, run `dpflow ledger trust`."
        )
        return LedgerUnwitnessed(msg, witness=str(self.path))

    def _damaged(self, what: str) -> LedgerCorrupt:
        msg = (
            f"the witness {self.path} cannot be used: {what}. Restore it from a "
            "backup; if there is none, move it away, check the ledger with `dpflow "
            "ledger verify` and begin a new witness with `dpflow ledger trust`."
        )
        return LedgerCorrupt(msg, witness=str(self.path))

    def _unavailable(self, error: OSError, verb: str) -> LedgerUnavailable:
        msg = (
            f"cannot {verb} the witness {self.path}: {error.strerror or error}. "
            "The step did not run. DPFLOW_WITNESS names another folder for it."
        )
        return LedgerUnavailable(msg, witness=str(self.path))


def witness_folder(setting: str | None, dialect: str) -> Path | None:
    """Return the folder of a ledger's witness; None if it is waived.

    Args:
        setting: A folder or "none"; None for DPFLOW_WITNESS, else the default of the
            kind of database.
        dialect: That kind.

    Raises:
        ConfigurationError: If no default would protect the ledger, or the setting
            names no folder.
    """
    setting = setting or os.environ.get(WITNESS_VARIABLE)
    if setting == NO_WITNESS:
        return None
    if setting is not None and "://" not in setting:
        return Path(setting).absolute()
    if setting is None and dialect == "sqlite":
        return _state_folder() / "dpflow"
    what = "is not set" if setting is None else f"names {setting.partition(':')[0]}"
    msg = (
        f"the place of the witness {what}. Set `witness` in [tool.dpflow] of "
        "pyproject.toml, or DPFLOW_WITNESS, to a folder that all workers share and "
        f"that is not restored together with the ledger, or to the word {NO_WITNESS!r} "
        "to do without one."
    )
    raise ConfigurationError(msg)


def _state_folder() -> Path:
    state = os.environ.get("XDG_STATE_HOME", "")
    # The specification tells to ignore relative ones.
    if Path(state).is_absolute():
        return Path(state)
    try:
        return Path.home() / ".local" / "state"
    except RuntimeError as error:
        msg = "there is no home folder for the witness; set DPFLOW_WITNESS to a folder"
        raise ConfigurationError(msg) from error
