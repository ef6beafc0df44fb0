"""Keywords of `guarded` and `dp_task`, for type checkers."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Required,
    TypeVar,
    overload,
)

from typing_extensions import TypedDict

from dpflow.guard.shapes import ColumnsLike, GroupsLike, LengthLike
from dpflow.guard.step import CellLike, CostLike, NoiseLike, OnChange, PartitionsLike

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
S = TypeVar("S")
T_co = TypeVar("T_co", covariant=True)


class StepKeywords(TypedDict, total=False):
    """Keywords of a step."""

    dataset: Required[str | tuple[str, ...]]
    cost: Required[CostLike]
    private: tuple[str, ...]
    length: LengthLike | None
    groups: GroupsLike | None
    columns: ColumnsLike | None
    release_key: str | None
    ignore: tuple[str, ...]
    moved_from: str | tuple[str, ...]
    on_change: OnChange
    partitions: PartitionsLike | None
    fresh: bool
    data_version: str | None
    cell: CellLike | None
    noise: NoiseLike
    measures: str | None


class LoadingDecorator(Generic[Q, T_co]):
    """Decorator of a function whose first parameter takes a loaded value."""

    if TYPE_CHECKING:

        @overload
        def __call__(
            self: LoadingDecorator[Q, Coroutine[Any, Any, S]],
            function: Callable[[S], R],
            /,
        ) -> Callable[Q, R]: ...
        @overload
        def __call__(
            self: LoadingDecorator[Q, Coroutine[Any, Any, S]],
            function: Callable[Concatenate[S, P], R],
            /,
        ) -> Callable[P, R]: ...
        @overload
        def __call__(self, function: Callable[[T_co], R], /) -> Callable[Q, R]: ...
        @overload
        def __call__(  # type: ignore[overload-cannot-match]
            self, function: Callable[Concatenate[T_co, P], R], /
        ) -> Callable[P, R]: ...
        def __call__(self, function: Callable[..., R], /) -> Callable[..., R]:
            """Make a step of the function."""
