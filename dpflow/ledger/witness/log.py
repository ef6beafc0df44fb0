"""The witness in a log that many machines share: a database, or Prefect's server.

Each repair of the ledger begins a new epoch of the log, with a header and the heads of
the ledger's books; those before it are kept. Nothing in the log is ever changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from dpflow.exceptions import ConfigurationError
from dpflow.ledger.witness.base import Seen, Unseen, WitnessBase
from dpflow.ledger.witness.lines import Header, Line


class LogError(Exception):
    """A log did not answer; its text holds no secret."""


class Log(Protocol):
    """An append-only log of lines, for every ledger that uses it.

    Each method raises `LogError` if the place does not answer or is not durable.
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

    def exists(self) -> bool:
        """Say whether it was begun."""
        return self._alone(self._newest_header, "read") is not None

    def _unseen(self) -> Unseen:
        header = self._newest_header()
        if header is None:
            raise self._missing()
        if header != self._seen.header:
            self._seen = Seen(header=header)
        try:
            texts, end = self._log.read(self.ledger, header.epoch, self._seen.end)
        except LogError as error:
            raise self._unusable(str(error), "read") from error
        return Unseen(tuple(map(self._parsed, texts)), end)

    def _append(self, lines: Sequence[Line]) -> None:
        # To the newest epoch: it may have begun just now.
        header = self._newest_header()
        if header is None:
            raise self._missing()
        try:
            told = self._log.append(self.ledger, header.epoch, self._texts(lines))
        except LogError as error:
            raise self._unusable(str(error), "write") from error
        if not told:
            raise self._missing()

    def enrol(self, epoch: int, lines: Sequence[Line], *, anew: bool = False) -> None:
        """Begin an epoch with what the ledger holds now."""
        if not anew and self.exists():
            raise self._begun()
        header = Header(ledger=self.ledger, epoch=epoch, whole=True)
        texts = self._texts(lines)
        try:
            text = header.to_text()[:-1]
            begun = self._alone(
                lambda: self._log.begin(self.ledger, epoch, text, texts), "write"
            )
        except LogError as error:
            raise self._unusable(str(error), "write") from error
        if not begun:
            raise self._begun()

    def compact(self) -> None:
        """Keep every line: what is shared is never rewritten."""

    def claim(self, source: str) -> str:
        """Say which ledger governs a data source; this one, if none did yet."""
        try:
            # Not within another thread's transaction, which may be rolled back.
            return self._alone(lambda: self._log.claim(source, self.ledger), "write")
        except LogError as error:
            raise self._unusable(str(error), "write") from error

    def _newest_header(self) -> Header | None:
        try:
            texts = self._log.headers(self.ledger)
        except LogError as error:
            raise self._unusable(str(error), "read") from error
        headers = [self._header_of(text) for text in texts]
        # Should two machines have begun an epoch at once, all take the same one.
        return max(headers, key=lambda each: (each.epoch, each.file), default=None)

    def _texts(self, lines: Sequence[Line]) -> list[tuple[str, str]]:
        return [(line.book, line.to_text(self.ledger)[:-1]) for line in lines]

    def _begun(self) -> ConfigurationError:
        msg = f"there is a witness of this ledger at {self.place} already"
        return ConfigurationError(msg)
