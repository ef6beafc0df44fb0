"""Types of `release`: what it returns for which value."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    Protocol,
    TypedDict,
    TypeVar,
    cast,
    overload,
)

from dpflow.noise.accuracy import Estimate, IntEstimate
from dpflow.noise.refining import Answer, Until
from dpflow.noise.shape import GroupsLike, Labels, LengthLike
from dpflow.rounding import Number

if TYPE_CHECKING:
    from typing import Unpack

    import numpy as np
    from numpy.typing import NDArray

    Scalar = float | Decimal | np.number[Any]
    Rows = tuple[Any, ...] | dict[Any, Any]
    Array = NDArray[Any]
    Ints = list[int] | tuple[int, ...] | Array
    Yes = Literal[True]
    No = Literal[False]


class Shaped(Protocol):
    """A Series, a frame or a table."""

    @property
    def shape(self) -> Any:
        """Its number of rows and columns."""


class Options(TypedDict, total=False):
    """Further keywords; the shape only in a `spend` block."""

    within: Number | None
    confidence: Number
    length: LengthLike | None
    groups: GroupsLike | None
    columns: Labels | None


K = TypeVar("K")
T = TypeVar("T", bound=Shaped)
N = TypeVar("N", bound="Scalar")
R = TypeVar("R", bound="Rows")


class Release(Protocol):
    """Draws the declared noise and returns the noisy value."""

    @overload
    def __call__(
        self, value: Scalar, *, as_int: Yes, **o: Unpack[Options]
    ) -> IntEstimate: ...
    @overload
    def __call__(
        self, value: Scalar, *, as_int: No = ..., **o: Unpack[Options]
    ) -> Estimate: ...
    @overload
    def __call__(
        self, value: Ints, *, until: Until, as_int: bool = ..., **o: Unpack[Options]
    ) -> tuple[Answer, ...]: ...
    @overload
    def __call__(
        self, value: dict[K, Any], *, as_int: Yes, **o: Unpack[Options]
    ) -> dict[K, int]: ...
    @overload
    def __call__(
        self, value: dict[K, Any], *, as_int: No = ..., **o: Unpack[Options]
    ) -> dict[K, float]: ...
    @overload
    def __call__(
        self, value: tuple[Scalar, ...], *, as_int: Yes, **o: Unpack[Options]
    ) -> tuple[int, ...]: ...
    @overload
    def __call__(
        self, value: tuple[Scalar, ...], *, as_int: No = ..., **o: Unpack[Options]
    ) -> tuple[float, ...]: ...
    @overload
    def __call__(
        self, value: list[N], *, as_int: Yes, **o: Unpack[Options]
    ) -> list[int]: ...
    @overload
    def __call__(
        self, value: list[N], *, as_int: No = ..., **o: Unpack[Options]
    ) -> list[float]: ...
    @overload
    def __call__(
        self, value: list[R], *, as_int: bool = ..., **o: Unpack[Options]
    ) -> list[R]: ...
    @overload
    def __call__(
        self, value: Array, *, as_int: Yes, **o: Unpack[Options]
    ) -> NDArray[np.int64]: ...
    @overload
    def __call__(
        self, value: Array, *, as_int: No = ..., **o: Unpack[Options]
    ) -> NDArray[np.float64]: ...
    @overload
    def __call__(self, value: T, *, as_int: bool = ..., **o: Unpack[Options]) -> T: ...


def typed_as_release(function: Callable[..., Any]) -> Release:
    """Return a function with the types of `Release`."""
    return cast("Release", function)
