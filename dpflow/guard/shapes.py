"""Declarations of several numbers on a step, and what its annotation says of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints
from weakref import WeakKeyDictionary

from dpflow.accounting.costs.base import Cost
from dpflow.exceptions import ConfigurationError, ReleaseError, require
from dpflow.interrupts import without_interrupts
from dpflow.ledger.codec import encode
from dpflow.ledger.codec.kinds import check_limits, unstorable_type
from dpflow.noise import shape as shapes
from dpflow.noise.columns import is_frame, is_vector
from dpflow.noise.draws import has_sampler
from dpflow.noise.shape import Shape, read_shape

#: Labels of a release, names of its columns and its length; or functions of the public
#: arguments that return them.
GroupsLike = shapes.GroupsLike | Callable[..., shapes.GroupsLike]
ColumnsLike = shapes.Labels | Callable[..., shapes.Labels]
LengthLike = shapes.LengthLike | Callable[..., shapes.LengthLike]


def read_declared_shape(name: str, declared: Mapping[str, Any]) -> Shape:
    """Return the shape that the keywords of a step declare.

    Raises:
        ConfigurationError: If they declare none; it names the step.
    """
    return read_shape(
        **declared,
        kind=lambda problem: ConfigurationError(
            f"step {name!r}: {problem}. The step did not run."
        ),
    )


def check_shape(
    name: str, declared: Mapping[str, Any], body: Callable[..., Any], cost: Cost | None
) -> None:
    """Check what a step declares of several numbers, as far as it is constant.

    Args:
        name: Name of the step.
        declared: Its keywords of several numbers.
        body: Its function.
        cost: The cost, if it is constant and `release` draws it.

    Raises:
        ConfigurationError: If it is wrong, or missing where the body's annotation says
            that `release` gets several numbers.
    """
    if not any(map(callable, declared.values())):
        read_declared_shape(name, declared)
    is_declared = any(value is not None for value in declared.values())
    if is_declared or cost is None or not has_sampler(cost):
        return
    kind = _several_numbers(body)
    line = 'groups=["north", "south"] for labels, length=12 for numbers without labels'
    if kind in ("DataFrame", "Table"):
        line = 'groups={"region": ["north", "south"]}, columns=["amount"]'
    require(
        kind is None,
        f"step {name!r} returns a {kind}, whose labels or length may depend on "
        "private data. Declare on the step what is known before the data is read, as "
        f"in {line}; or annotate the one number that it releases",
    )


def _several_numbers(body: Callable[..., Any]) -> str | None:
    """Return the name of a container that a body returns, if annotated."""
    kinds = [_read_annotation(body)]
    for kind in kinds:
        if get_origin(kind) in (Union, UnionType):
            kinds += map(_resolve_alias, get_args(kind))
        cls = get_origin(kind) or kind
        is_class = isinstance(cls, type)
        is_several = is_class and (cls is list or is_frame(cls) or is_vector(cls))
        # Texts are none of the numbers.
        if is_several and get_args(kind) != (str,):
            return str(cls.__name__)
    return None


#: Characters of a number in a stored release, at most.
_NUMBER_SIZE = 25


def check_storable(name: str, shape: Shape, body: Callable[..., Any]) -> None:
    """Refuse a shape whose release could not be stored, or whose labels could not.

    Refuse a body, too, whose annotation says so of its output.

    Raises:
        ConfigurationError: If so.
    """
    characters = _NUMBER_SIZE * shape.count
    try:
        if shape.groups is not None:
            for labels in shape.groups.labels:
                times = shape.groups.count // len(labels)
                characters += times * len(encode(list(labels)))
        encode(list(shape.columns or ()))
        check_limits(characters)
    except ReleaseError as error:
        msg = (
            f"step {name!r} has a release_key, and a release of its groups=, columns= "
            f"or length= could not be stored: {error.message} The step did not run."
        )
        raise ConfigurationError(msg) from None
    if (kind := unstorable_type(_read_annotation(body))) is not None:
        msg = (
            f"step {name!r} returns {kind.__module__}.{kind.__qualname__}, which "
            "cannot be stored, so that its release could not be replayed. The step did "
            "not run, and nothing was charged. A release holds numbers, text, dates, "
            "lists, dicts, numpy arrays, pandas or polars frames, and what is under "
            "@releasable."
        )
        raise ConfigurationError(msg)


def _read_annotation(body: Callable[..., Any]) -> Any:
    """Return the annotation of a body's output; Any where it cannot be read."""
    annotation = _annotations.get(body)
    if annotation is None:
        try:
            annotation = _resolve_alias(get_type_hints(body).get("return", object))
        # A name may be known to type checkers only, or later.
        except without_interrupts(Exception):
            return Any
        _annotations[body] = annotation
    return annotation


#: Annotations of the outputs of bodies, which are read once.
_annotations: WeakKeyDictionary[Callable[..., Any], Any] = WeakKeyDictionary()


def _resolve_alias(kind: Any) -> Any:
    """Return the type that an annotation stands for: of a `type` statement or NewType.

    Since 2.5, numpy declares `NDArray` by a `type` statement.
    """
    alias = get_origin(kind) or kind
    if alias is Annotated:
        return _resolve_alias(get_args(kind)[0])
    value = getattr(alias, "__value__", getattr(alias, "__supertype__", None))
    if value is None:
        return kind
    return _resolve_alias(value[get_args(kind)] if get_args(kind) else value)
