"""Canonical texts of JSON-able data, their digests, and answers that are remembered."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import wraps
from hashlib import sha256
from typing import Any, TypeVar, TypeVarTuple

Ts = TypeVarTuple("Ts")
R = TypeVar("R")

_MOST = 1024

_json: Any = json.encoder


#: Sorts keys; knows neither spaces, nor letters beyond ASCII, nor infinite numbers.
_encode = _json.c_make_encoder(
    None, None, _json.encode_basestring_ascii, None, ":", ",", True, False, False
)


def canonical(data: object) -> str:
    """Write JSON-able data in one form: sorted, without spaces, in ASCII.

    Raises:
        TypeError: If it is nothing that JSON knows.
        ValueError: If it contains itself, or a number is not finite.
    """
    try:
        return "".join(_encode(data, 0))
    except RecursionError as error:
        what = "it is too deep"
        raise ValueError(what) from error


def digest(text: str) -> str:
    """Return the sha256 of a text in hexadecimal."""
    return sha256(text.encode()).hexdigest()


def by_identity(function: Callable[[*Ts], R]) -> Callable[[*Ts], R]:
    """Remember a pure function's answers about the same objects.

    Only for objects that never change: frozen policies and costs, rules after their
    creation. An equal object is another one, for which the function is called again.
    """
    answers: dict[tuple[int, ...], tuple[R, tuple[*Ts]]] = {}

    @wraps(function)
    def call_once(*arguments: *Ts) -> R:
        key = tuple(map(id, arguments))
        answer = answers.get(key)
        if answer is None:
            if len(answers) >= _MOST:
                answers.clear()
            # It keeps the things, so that no other object gets their id.
            answer = answers[key] = (function(*arguments), arguments)
        return answer[0]

    return call_once
