"""Where the lines of witnesses are: an append-only log, whatever keeps it.

A file, a database and Prefect's server each are one. Each repair of a ledger begins a
new epoch of its log, with a header and the heads of the ledger's books; those before it
are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol


class LogError(Exception):
    """A log did not answer; its text holds no secret."""


class NotBegun(LogError):
    """A ledger has no lines in a log, or they are gone."""


class LogDamaged(LogError):
    """A log holds what nobody wrote to it."""


class Found(NamedTuple):
    """What is new in a log.

    Attributes:
        header: Of the newest epoch.
        lines: Those after the end that was asked for; all, if the header is another.
        end: Where they end, in the log's own terms.
    """

    header: str
    lines: Sequence[str]
    end: Any


class Log(Protocol):
    """An append-only log of lines, for every ledger that uses it; threads may share it.

    Each method raises `LogError` or `OSError` if the place does not answer or is not
    durable.
    """

    #: Where it is, without any secret.
    place: str
    #: What brings a lost one back.
    advice: str

    def read(self, ledger: str, header: str, end: Any) -> Found:
        """Return the newest epoch's lines after an end.

        Args:
            ledger: Whose witness.
            header: Of the epoch that was read before; empty for none.
            end: What was returned last; None reads from the beginning.

        Raises:
            NotBegun: If no epoch was ever begun, or all are gone.
        """

    def append(self, ledger: str, lines: Sequence[tuple[str, str]], end: Any) -> Any:
        """Append lines to the newest epoch, each beside its book, durably.

        Returns:
            Their end, if nothing came between the given end and them; else None.

        Raises:
            NotBegun: If no epoch was ever begun; nothing is written then.
        """

    def begin(
        self, ledger: str, epoch: int, header: str, lines: Sequence[tuple[str, str]]
    ) -> bool:
        """Begin an epoch with a header and lines, durably, all or nothing.

        Returns:
            Whether this did it; False if the epoch had been begun.
        """

    def claim(self, source: str, ledger: str) -> str:
        """Return the first ledger that claimed a source; this one, if none had."""
