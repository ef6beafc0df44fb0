"""The witness in a log that many machines share: a database, or Prefect's server.

Each repair of the ledger begins a new epoch of the log, with a header and the heads of
the ledger's books; those before it are kept. Nothing in the log is ever changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from dpflow.ledger.witness.base import Seen, Unseen, WitnessBase
from dpflow.ledger.witness.lines import Header, Line
from dpflow.locks import Lock

T = TypeVar("T")

#: How long a thread waits for the others of its process.
_THREAD_SECONDS = 60.0


class LogError(Exception):
    """A log did not answer; its text holds no secret."""


class Log(Protocol):
    """An append-only log of lines, for every ledger that uses it.

    One thread at a time calls it. Each method raises `LogError` if the place does not
    answer or is not durable.
    """

    #: Where it is, without any secret.
    place: str

    def headers(self, ledger: str) -> list[str]:
        """Return the headers of all epochs of a ledger's witness."""

    def begin(
        self, ledger: str, epoch: int, header: str, lines: Sequence[tuple[str, str]]
    ) -> bool:
        """Begin an epoch with a header and lines, durably, all or nothing.

        Returns:
            Whether this did it; False if the epoch had been begun.
        """

    def append(self, ledger: str, epoch: int, lines: Sequence[tuple[str, str]]) -> bool:
        """Append lines, each beside its book, durably.

        Returns:
            False if the epoch was never begun; nothing is written then.
        """

    def read(self, ledger: str, epoch: int, end: Any) -> tuple[list[str], Any]:
        """Return the lines after an end, and the new end.

        Args:
            ledger: Whose witness.
            epoch: Which epoch of it.
            end: What the last call returned; None reads from the beginning.
        """

    def claim(self, source: str, ledger: str) -> str:
        """Return the first ledger that claimed a source; this one, if none had."""


class LogWitness(WitnessBase):
    """The witness of one ledger in a log.

    Args:
        log: Where its lines are.
        ledger: Id of the ledger.
    """

    def __init__(self, log: Log, ledger: str) -> None:
        super().__init__(log.place, ledger)
        self._log = log
        self._lock = Lock()

    def exists(self) -> bool:
        """Say whether it was begun."""
        return self._asked(self._newest_header, "read") is not None

    def unseen(self) -> Unseen:
        """Read what was appended since `accept`."""

        def read() -> Unseen:
            header, seen = self._begun_header(), self.seen
            if header != seen.header:
                seen = self.seen = Seen(header=header)
            texts, end = self._log.read(self.ledger, header.epoch, seen.end)
            return Unseen(seen, tuple(map(self._parsed, texts)), end)

        return self._asked(read, "read")

    def append(self, lines: Sequence[Line]) -> None:
        """Append lines to the newest epoch: it may have begun just now."""
        texts = self._texts(lines)

        def tell() -> bool:
            epoch = self._begun_header().epoch
            return self._log.append(self.ledger, epoch, texts)

        if not self._asked(tell, "write"):
            raise self._missing()

    def enrol(self, epoch: int, lines: Sequence[Line], *, anew: bool = False) -> None:
        """Begin an epoch with what the ledger holds now."""
        text = Header(ledger=self.ledger, epoch=epoch, whole=True).to_text()[:-1]
        texts = self._texts(lines)

        def begin() -> bool:
            may = anew or self._newest_header() is None
            return may and self._log.begin(self.ledger, epoch, text, texts)

        if not self._asked(begin, "write"):
            raise self._begun()

    def claim(self, source: str) -> str:
        """Say which ledger governs a data source; this one, if none did yet."""
        return self._asked(lambda: self._log.claim(source, self.ledger), "write")

    def _asked(self, ask: Callable[[], T], verb: str) -> T:
        """Ask the log while no other thread does: not within another's transaction."""
        try:
            return self._lock.run(ask, _THREAD_SECONDS)
        except (LogError, TimeoutError) as error:
            raise self._unusable(error, verb) from error

    def _begun_header(self) -> Header:
        header = self._newest_header()
        if header is None:
            raise self._missing()
        return header

    def _newest_header(self) -> Header | None:
        headers = [self._header_of(text) for text in self._log.headers(self.ledger)]
        # Should two machines have begun an epoch at once, all take the same one.
        return max(headers, key=lambda each: (each.epoch, each.file), default=None)

    def _texts(self, lines: Sequence[Line]) -> list[tuple[str, str]]:
        return [(line.book, line.to_text(self.ledger)[:-1]) for line in lines]
