"""Answers of pure functions about things that never change: the one small memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar, TypeVarTuple

Ts = TypeVarTuple("Ts")
R = TypeVar("R")

_MOST = 1024


def by_identity(function: Callable[[*Ts], R]) -> Callable[[*Ts], R]:
    """Remember a pure function's answers about the same objects.

    Only for objects that never change: frozen policies and costs, rules once they are
    made. An equal object is another one, for which the function is called again.
    """
    answers: dict[tuple[int, ...], tuple[R, tuple[*Ts]]] = {}

    @wraps(function)
    def remembered(*things: *Ts) -> R:
        key = tuple(map(id, things))
        answer = answers.get(key)
        if answer is None:
            if len(answers) >= _MOST:
                answers.clear()
            # It keeps the things, so that no other object gets their id.
            answer = answers[key] = (function(*things), things)
        return answer[0]

    return remembered
