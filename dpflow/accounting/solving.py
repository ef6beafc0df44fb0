"""Numbers that take long to solve: a ledger's transaction only looks them up.

Prices, thresholds and suggestions are solved once and remembered. In an active
`look_up` a missing number raises `NotSolved`; the ledger then ends the transaction,
solves the number, and begins again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, copy_context
from typing import TypeVar

T = TypeVar("T")


class NotSolved(Exception):
    """A number is missing that this thread may not solve now.

    Attributes:
        solve: Solve and remember the number.
    """

    def __init__(self, solve: Callable[[], object]) -> None:
        super().__init__("a number is not solved yet")
        self.solve = solve


#: Whether the running code may only look numbers up.
_looks_up: ContextVar[bool] = ContextVar("dpflow_looks_up", default=False)


def look_up(work: Callable[[], T], *, active: bool) -> T:
    """Return the answer of some work, which may solve no numbers if that is active."""
    context = copy_context()
    context.run(_looks_up.set, active)
    return context.run(work)


def before_solving(solve: Callable[[], object]) -> None:
    """Refuse to go on if this thread may only look numbers up.

    Args:
        solve: Solve and remember the number that is missing.

    Raises:
        NotSolved: In an active `look_up`.
    """
    if _looks_up.get():
        raise NotSolved(solve)
