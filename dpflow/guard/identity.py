"""The function that a release belongs to: its file and its qualified name.

A module has several names: `__main__`, `report`, a hash of Prefect's loader. Its file
below the project's root has one, in every clone.
"""

from __future__ import annotations

import inspect
import os
import sys
import weakref
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from types import BuiltinFunctionType
from typing import Any, NamedTuple

from dpflow.guard.functions import held_by, layers

#: How many release keys of a process are compared with one another.
_MOST_KEYS = 10_000
#: Values that tell two results of one decorator apart.
_PLAIN = (str, bytes, bool, int, float, type(None))


class Maker(NamedTuple):
    """The function behind a release.

    Attributes:
        function: Its file below the root and its qualified name, as in
            `flows/report.py:count`; of an installed package the module.
        receiver: The same of the class of `self` or `cls`; "" without one.
    """

    function: str
    receiver: str = ""

    def __str__(self) -> str:
        return self.function + (f" of {self.receiver}" if self.receiver else "")

    def before_move(self, function: str) -> Maker:
        """Return the maker that this one was when its function had another name."""
        if self.receiver == _owner(self.function):
            return Maker(function, _owner(function))
        old, _, _ = function.rpartition(":")
        new, _, name = self.receiver.rpartition(":")
        moved = new == self.function.rpartition(":")[0]
        return Maker(function, f"{old}:{name}" if old and moved else self.receiver)


def _owner(function: str) -> str:
    """Return the class of a method; "" of a function outside a class."""
    file, colon, name = function.rpartition(":")
    owner, dot, _ = name.rpartition(".")
    return "" if owner.endswith("<locals>") or not dot else file + colon + owner


def maker_of(function: Callable[..., Any], receiver: object, root: Path) -> Maker:
    """Return the identity of a step's function.

    Args:
        function: The function, with its decorators.
        receiver: The instance or class that a method is called on; None without one.
        root: The root of the project.
    """
    inner: Any = layers(function)[-1]
    if not hasattr(inner, "__qualname__"):
        inner = type(inner)
    cls = receiver if isinstance(receiver, type) else type(receiver)
    return Maker(_named(inner, root), "" if receiver is None else _named(cls, root))


def _named(thing: Any, root: Path) -> str:
    """Name a function or class by its file; without one by its qualified name."""
    name, module = thing.__qualname__, str(thing.__module__)
    code = getattr(thing, "__code__", None)
    for value in vars(thing).values() if isinstance(thing, type) else ():
        # A class that was sent to a worker knows its module by another name.
        method = layers(value)[-1]
        if getattr(method, "__qualname__", "").startswith(f"{name}."):
            code = code or getattr(method, "__code__", None)
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    home = _home(code.co_filename if code else file, module, root)
    return f"{home}:{name}" if home else name


@lru_cache(maxsize=1024)
def _home(file: str, module: str, root: Path) -> str:
    """Return a file below the root, or the module of an installed one; else ""."""
    path, base = (Path(os.path.realpath(each)) for each in (file, root))
    if not path.is_file():
        return ""
    if {"site-packages", "dist-packages"} & {*path.parts}:
        return module
    return path.relative_to(base).as_posix() if path.is_relative_to(base) else ""


#: The last function of this process that asked for each release key.
_asked: dict[str, tuple[weakref.ref[Any], Maker]] = {}


def other_maker(
    key: str, function: Callable[..., Any], makers: tuple[Maker, ...]
) -> Maker | None:
    """Return the function that asked for a release key before, if it is another one.

    A later definition under one name of a module replaces the earlier one: an edited
    cell of a notebook, or a module that was loaded again. So does one where the earlier
    can be called no more.

    Args:
        key: The keyed digest of the release key.
        function: The function that asks now.
        makers: Its identity, and those that it had before it was moved.
    """
    reference, before = _asked.get(key, (None, makers[0]))
    other = reference and reference()
    if other in (None, function) or before in makers[1:]:
        return None
    is_same = before == makers[0] and (
        _code(other) == _code(function)
        or (_is_current(function) and not _is_reachable(other))
    )
    return None if is_same else before


def note_maker(key: str, function: Callable[..., Any], maker: Maker) -> None:
    """Note the function that asks for a release key."""
    if len(_asked) >= _MOST_KEYS:
        _asked.clear()
    _asked[key] = weakref.ref(function), maker


def _code(function: Any) -> list[Any]:
    """Return what tells functions of one name apart: their code and decorators."""
    result: list[Any] = []
    *around, inner = layers(function)
    for layer in (*around, inner):
        result.append(_sketch(layer))
        for value in held_by(layer):
            if callable(value):
                result += map(_sketch, layers(value))
            elif layer is not inner and isinstance(value, _PLAIN):
                result.append(value)
    return result


def _sketch(layer: Any) -> object:
    code = getattr(layer, "__code__", None)
    if code is not None:
        return code.replace(co_firstlineno=1)
    return layer if isinstance(layer, type | BuiltinFunctionType) else type(layer)


def _is_current(function: Callable[..., Any]) -> bool:
    """Return whether its module has this function under its qualified name."""
    inner: Any = layers(function)[-1]
    found: Any = sys.modules.get(str(getattr(inner, "__module__", "")))
    for name in str(getattr(inner, "__qualname__", "")).split("."):
        found = inspect.getattr_static(found, name, None)
    return layers(found)[-1] is inner


def _is_reachable(function: Callable[..., Any]) -> bool:
    """Return whether its module has the function under another name."""
    inner: Any = layers(function)[-1]
    names = getattr(sys.modules.get(str(inner.__module__)), "__dict__", {})
    return any(
        callable(value) and layers(value)[-1] is inner
        for name, value in names.copy().items()
        if not name.startswith("_")
    )
