"""Which types of values can be stored, as far as an annotation tells."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union

from dpflow.ledger.codec import declared, plain

_UNIONS = (Union, types.UnionType)
_CONTAINERS = (list, tuple, set, frozenset, dict)
#: Of other libraries; what stands in them is known with the value only.
_KEPT = {
    *("numpy.ndarray", "numpy.float64", "numpy.float32", "numpy.int64", "numpy.int32"),
    *("pandas.Series", "pandas.DataFrame", "pandas.Timestamp", "pandas.Interval"),
    *("polars.Series", "polars.DataFrame"),
    *("pyarrow.Array", "pyarrow.ChunkedArray", "pyarrow.Table"),
}
_LIBRARIES = {name.partition(".")[0] for name in _KEPT}


def unstorable_type(annotation: object) -> type | None:
    """Return a type in an annotation that no release can hold; None if none is known.

    Args:
        annotation: A type, or a form of `typing` such as `list[int]`.
    """
    for kind in _types(annotation):
        if _is_kept(kind) is False:
            assert isinstance(kind, type)
            return kind
    return None


def is_storable(annotation: object) -> bool:
    """Say whether an annotation allows only values of types that can be stored."""
    return all(_is_kept(kind) for kind in _types(annotation))


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


def _is_kept(kind: object) -> bool | None:
    """Say whether values of a type can be stored; None where only they tell."""
    if kind is None or kind in plain.TYPES - set(_CONTAINERS):
        return True
    if not isinstance(kind, type) or kind in (object, Any, *_CONTAINERS):
        return None
    module = kind.__module__.partition(".")[0]
    if module in _LIBRARIES:
        return True if f"{module}.{kind.__name__}" in _KEPT else None
    known = declared.declared_types()
    if kind in known:
        return True
    # A value may be of a class that inherits from it.
    several = inspect.isabstract(kind) or any(issubclass(each, kind) for each in known)
    return None if several or kind.__module__ in _ABSTRACT else False


_ABSTRACT = ("collections.abc", "typing", "numbers")
