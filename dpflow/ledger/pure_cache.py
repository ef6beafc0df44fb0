"""What pure functions answered about things that never change: the one small memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_MOST = 1024


def by_identity(function: Callable[P, R]) -> Callable[P, R]:
    """Remember a pure function's answers about the same objects.

    Only for objects that never change: frozen policies and costs, rules once they are
    made. An equal object is another one and is asked about again.
    """
    known: dict[object, tuple[R, tuple[object, ...]]] = {}

    @wraps(function)
    def remembered(*things: P.args, **named: P.kwargs) -> R:
        if named:
            return function(*things, **named)
        key = tuple(map(id, things))
        found = known.get(key)
        if found is None:
            if len(known) >= _MOST:
                known.clear()
            # It keeps the things, so that no other object gets their id.
            found = known[key] = (function(*things, **named), things)
        return found[0]

    return remembered
