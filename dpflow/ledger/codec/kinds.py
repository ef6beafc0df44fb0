"""Kinds of values that a release can hold, by type and by name, and their limits.

Authors declare dataclasses, enums and pydantic models to be storable. These are written
field by field under their name and read back through their own constructor, so that
their checks run; the member of an enum by its own name. Text creates no instance of any
other class.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import Enum, Flag
from functools import partial
from importlib import import_module
from types import UnionType
from typing import Any, NamedTuple, TypeVar, Union

from pydantic import BaseModel

from dpflow.exceptions import ConfigurationError, ReleaseError, public_kind
from dpflow.libraries import comes_from

#: Longest text that a ledger row holds, in characters (all of them ASCII).
MAX_TEXT = 16 * 2**20

#: Deepest nesting of containers.
MAX_DEPTH = 50

#: The key that marks a JSON object as a typed value.
TYPE_KEY = "$type"

#: Forms of annotations whose values are, or hold, values of their arguments.
_FORMS = (Union, UnionType, list, tuple, set, frozenset, dict)


class Kind(NamedTuple):
    """A way to store the values of one type.

    Attributes:
        name: Name in the text.
        parts: Returns the parts of a value, each of them storable.
        make: Returns the value that has the given parts.
        inherited: Whether it also stores the values of subclasses.
    """

    name: str
    parts: Callable[[Any], Iterable[Any]]
    make: Callable[..., Any]
    inherited: bool = False


#: Types of columns: each with its arguments, and the type as which it is written.
Types = Mapping[str, tuple[Any, tuple[str, ...], Any]]

#: Kinds by the types of their values.
KINDS: dict[type, Kind] = {}
_BY_NAME: dict[str, Kind] = {}
#: Libraries whose kinds load when a value or a text needs them.
_LIBRARIES = ("numpy", "pandas", "polars", "pyarrow")


def register(
    prefix: str,
    kinds: Mapping[type, tuple[Callable[[Any], Iterable[Any]], Callable[..., Any]]],
    inherited: Collection[type] = (),
) -> None:
    """Add kinds of values, named by the names of their types.

    Args:
        prefix: Begins each name.
        kinds: How to take a value apart and how to make it again, by its type.
        inherited: Those that also store the values of subclasses.
    """
    named = {
        cls: Kind(f"{prefix}{cls.__qualname__}", parts, make, cls in inherited)
        for cls, (parts, make) in kinds.items()
    }
    _BY_NAME.update({kind.name: kind for kind in named.values()})
    KINDS.update(named)


def kind_of(value: object) -> Kind | None:
    """Return the kind of a value; None if no kind stores it exactly."""
    cls = type(value)
    for library in () if cls in KINDS else _LIBRARIES:
        if comes_from(value, library):
            import_module(f"{__package__}.{library}")
    return kind_of_type(cls)


def kind_of_type(cls: type) -> Kind | None:
    """Return the kind of a type's values, as far as its module is loaded."""
    # The nearest kind decides: a value of a subclass may hold more.
    nearest = next((base for base in cls.__mro__ if base in KINDS), cls)
    kind = KINDS.get(nearest)
    return kind if nearest is cls or (kind and kind.inherited) else None


def kind_named(name: str) -> Kind:
    """Return a kind by its name.

    Raises:
        ReleaseError: If no kind has this name.
    """
    library = name.partition(".")[0]
    if name not in _BY_NAME and library in _LIBRARIES:
        import_module(f"{__package__}.{library}")
    if name not in _BY_NAME:
        msg = (
            f"a stored release has the unknown type {name[:200]!r}. A declared class "
            "must be under @releasable, and its module imported before the replay; "
            "another type was written by a newer dpflow or by something else."
        )
        raise ReleaseError(msg)
    return _BY_NAME[name]


def unstorable_type(annotation: object) -> type | None:
    """Return a type in an annotation that no release can hold, if any.

    Args:
        annotation: A type, or a form of `typing` such as `list[int]`.
    """
    origin = typing.get_origin(annotation)
    if origin in _FORMS:
        inside = typing.get_args(annotation)
        return next(filter(None, map(unstorable_type, inside)), None)
    cls = origin or annotation
    if not isinstance(cls, type) or cls in (Any, type(None), bool, list):
        return None
    if kind_of_type(cls) or cls.__module__.partition(".")[0] in _LIBRARIES:
        return None
    # A value may be of a class that inherits from it.
    several = inspect.isabstract(cls) or any(issubclass(k, cls) for k in tuple(KINDS))
    return None if several else cls


def unstorable(value: object, hint: str) -> ReleaseError:
    """Build the error for a value that cannot be stored; it names the type only."""
    kind = public_kind(type(value))
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    name = f"{module}{kind.__qualname__}"
    return ReleaseError(f"a value of type {name} cannot be stored; {hint}.", type=name)


def column_parts(types: Types, name: str, column: Any, of: Any) -> list[Any]:
    """Return the name of a column's type, its arguments, and the column to write.

    Args:
        types: Those that can be stored.
        name: Of the column's type.
        column: A column of polars or Arrow.
        of: Its type.
    """
    if name not in types:
        # Of nested ones only the kind: the names of their fields may be data.
        kind = name.partition("<")[0]
        hint = f"a column of {kind} has no exact text; cast it to numbers or text"
        raise unstorable(column, hint)
    _, names, written = types[name]
    plain = column if written is None else column.cast(written)
    return [name, [getattr(of, argument) for argument in names], plain]


def check_limits(characters: int, depth: int = 0) -> None:
    """Refuse a value beyond the limits of text and nesting.

    Raises:
        ReleaseError: If it is beyond one of them.
    """
    if characters > MAX_TEXT or depth > MAX_DEPTH:
        msg = (
            f"the value needs more than {MAX_TEXT // 2**20} MiB of text, or is nested "
            f"deeper than {MAX_DEPTH} levels (or contains itself), and cannot be "
            "stored; release fewer numbers, a numpy array in place of a list, or a "
            "flatter value."
        )
        raise ReleaseError(msg)


# Declared classes


T = TypeVar("T", bound=type)


def releasable(cls: T) -> T:
    """Declare a dataclass, enum or pydantic model to be storable as a release.

    Its fields must be storable themselves. Its name, module included, is written
    with every value: a class that moves cannot be read back under its old name.

    Args:
        cls: The class; use this as its decorator.

    Returns:
        The class, unchanged.

    Raises:
        ConfigurationError: If it is neither, or cannot be built again from its
            fields.

    Examples:
        >>> @releasable
        ... @dataclass(frozen=True)
        ... class Summary:
        ...     customers: int
        ...     revenue: float
    """
    problem = _problem(cls)
    if problem:
        msg = f"{getattr(cls, '__qualname__', cls)!s} cannot be releasable: {problem}."
        raise ConfigurationError(msg)
    # A worker that was spawned knows the main module by another name.
    module = cls.__module__.replace("__mp_main__", "__main__")
    register(f"declared.{module}.", {cls: (_parts, partial(_make, cls))})
    return cls


def _problem(cls: object) -> str:
    if not isinstance(cls, type):
        return "it is no class"
    if issubclass(cls, BaseModel):
        if any(f.alias or f.validation_alias for f in cls.model_fields.values()):
            return "a field with an alias does not read back under its own name"
        return "it has private attributes" if cls.__private_attributes__ else ""
    if issubclass(cls, Flag):
        return "a combination of flags has no name of its own"
    if issubclass(cls, Enum):
        return ""
    if not dataclasses.is_dataclass(cls):
        return "it is neither a dataclass, an enum nor a pydantic model"
    if not all(field.init for field in dataclasses.fields(cls)):
        return "a field with init=False cannot be given back to its constructor"
    return ""


def _parts(value: Any) -> list[Any]:
    if isinstance(value, Enum):
        return [value.name]
    if isinstance(value, BaseModel):
        if value.model_extra:
            hint = "fields that its class does not declare are lost"
            raise unstorable(value, hint)
        names = list(type(value).model_fields)
    else:
        names = [field.name for field in dataclasses.fields(value)]
    return [{name: getattr(value, name) for name in names}]


def _make(cls: Any, content: Any) -> Any:
    return cls[content] if issubclass(cls, Enum) else cls(**content)
