"""Sending a request once more whose answer was lost."""

from __future__ import annotations

from collections.abc import Callable
from traceback import clear_frames
from typing import TypeVar

from dpflow.exceptions import LedgerUnavailable

T = TypeVar("T")

#: So often others may be faster to write the same rows.
_RACES = 20


def surely(send: Callable[[bool], T]) -> T:
    """Send a request, and again, on a fresh connection, if its outcome is unknown.

    Args:
        send: Sends it; is told whether it was sent before, and so may have come
            through already.

    Raises:
        LedgerUnavailable: If the ledger did not answer the second time either, or
            nothing was sent because it was busy: waiting twice as long helps nobody.
            Where others were faster, which wrote nothing, it is sent more often.
    """
    again, races = False, 0
    try:
        while True:
            try:
                return send(again)
            except LedgerUnavailable as error:
                if "raced" in error.details and races < _RACES:
                    races += 1
                elif again or error.details.keys() & {"waited", "raced"}:
                    raise
                else:
                    again, races = True, 0
    except Exception:
        raise
    except BaseException as stopped:
        # An interrupt may have kept a transaction from its end: it ends when nothing
        # refers to it, and who keeps the interrupt would keep it as well.
        clear_frames(stopped.__traceback__)
        raise
