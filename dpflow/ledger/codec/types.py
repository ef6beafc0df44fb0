"""Which types of values can be stored, as far as an annotation tells."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypeGuard, Union

from dpflow.ledger.codec import declared, plain

_UNIONS = (Union, types.UnionType)
_CONTAINERS = (list, tuple, set, frozenset, dict)
#: What stands in values of these is known with the value only.
_LIBRARIES = ("numpy", "pandas", "polars", "pyarrow")


def unstorable_type(annotation: object) -> type | None:
    """Return a type in an annotation that no release can hold; None if none is known.

    Args:
        annotation: A type, or a form of `typing` such as `list[int]`.
    """
    return next(filter(_is_unstorable, _types(annotation)), None)


def _types(annotation: object) -> Iterator[object]:
    """Yield what an annotation is made of."""
    origin, inside = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        yield from _types(inside[0])
    elif origin is Literal:
        yield from map(type, inside)
    elif origin in _UNIONS or origin in _CONTAINERS:
        for part in inside:
            yield from () if part is Ellipsis else _types(part)
    else:
        yield annotation if origin is None else origin


def _is_unstorable(kind: object) -> TypeGuard[type]:
    """Say whether no value of a type can be stored; not where only values tell."""
    if not isinstance(kind, type) or kind in {object, Any, *plain.TYPES}:
        return False
    known = declared.declared_types()
    if kind in known or kind.__module__.partition(".")[0] in _LIBRARIES:
        return False
    # A value may be of a class that inherits from it.
    several = inspect.isabstract(kind) or any(issubclass(each, kind) for each in known)
    return not several and kind.__module__ not in _ABSTRACT


_ABSTRACT = ("collections.abc", "typing", "numbers")
