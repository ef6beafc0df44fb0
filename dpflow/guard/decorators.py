"""Types of the decorator that `guarded` returns, with and without `load=`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, Generic, overload

from typing_extensions import ParamSpec, TypeVar

P = ParamSpec("P")
Q = ParamSpec("Q", default=...)
R = TypeVar("R")
S = TypeVar("S")

#: What a call of an async load returns.
Later = Coroutine[Any, Any, S]


class NoLoad:
    """Type of the loaded value of a step without a load."""


T_co = TypeVar("T_co", covariant=True, default=NoLoad)


class Decorator(Generic[Q, T_co]):
    """Decorator of a function, whose first parameter takes the value of a load."""

    if TYPE_CHECKING:

        @overload
        def __call__(
            self: Decorator[..., NoLoad], body: Callable[P, R], /
        ) -> Callable[P, R]: ...
        @overload
        def __call__(
            self: Decorator[Q, Later[S]], body: Callable[[S], R], /
        ) -> Callable[Q, R]: ...
        @overload
        def __call__(
            self: Decorator[Q, Later[S]], body: Callable[Concatenate[S, P], R], /
        ) -> Callable[P, R]: ...
        @overload
        def __call__(self, body: Callable[[T_co], R], /) -> Callable[Q, R]: ...
        @overload
        def __call__(  # type: ignore[overload-cannot-match]
            self, body: Callable[Concatenate[T_co, P], R], /
        ) -> Callable[P, R]: ...
        def __call__(self, body: Callable[..., R], /) -> Callable[..., R]:
            """Make a step of the function."""
            ...
