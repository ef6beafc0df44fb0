"""Dataclasses, enums and pydantic models that their author declared to be storable.

They are written field by field under their name and read back through their own
constructor, so that their checks run; the member of an enum by its own name. Only a
declared class is ever made from text.
"""

from __future__ import annotations

import dataclasses
from enum import Enum, Flag
from functools import partial
from typing import Any, TypeVar

from pydantic import BaseModel

from dpflow.exceptions import ConfigurationError
from dpflow.ledger.codec.kinds import register, unstorable

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
        ConfigurationError: If it is neither, or could not be made again from its
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
