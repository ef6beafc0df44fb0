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
    Row = tuple[Any, ...] | dict[Any, Any]
    Array = NDArray[Any]
    Ints = list[int] | tuple[int, ...] | Array


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


class AsAny(Options, total=False):
    """Floats or ints."""

    as_int: bool


class AsFloat(Options, total=False):
    """Floats."""

    as_int: Literal[False]


class AsInt(Options):
    """Ints."""

    as_int: Literal[True]


class Refining(AsAny):
    """Ints, refined until the last one is good enough."""

    until: Until


K = TypeVar("K")
T = TypeVar("T", bound=Shaped)
N = TypeVar("N", bound="Scalar")
R = TypeVar("R", bound="Row")


class ReleaseFunction(Protocol):
    """Draws the declared noise and returns the noisy value."""

    @overload
    def __call__(self, value: Scalar, **o: Unpack[AsInt]) -> IntEstimate: ...
    @overload
    def __call__(self, value: Scalar, **o: Unpack[AsFloat]) -> Estimate: ...
    @overload
    def __call__(self, value: Ints, **o: Unpack[Refining]) -> tuple[Answer, ...]: ...
    @overload
    def __call__(self, value: dict[K, Any], **o: Unpack[AsInt]) -> dict[K, int]: ...
    @overload
    def __call__(self, value: dict[K, Any], **o: Unpack[AsFloat]) -> dict[K, float]: ...
    @overload
    def __call__(
        self, value: tuple[Scalar, ...], **o: Unpack[AsInt]
    ) -> tuple[int, ...]: ...
    @overload
    def __call__(
        self, value: tuple[Scalar, ...], **o: Unpack[AsFloat]
    ) -> tuple[float, ...]: ...
    @overload
    def __call__(self, value: list[N], **o: Unpack[AsInt]) -> list[int]: ...
    @overload
    def __call__(self, value: list[N], **o: Unpack[AsFloat]) -> list[float]: ...
    @overload
    def __call__(self, value: list[R], **o: Unpack[AsAny]) -> list[R]: ...
    @overload
    def __call__(self, value: Array, **o: Unpack[AsInt]) -> NDArray[np.int64]: ...
    @overload
    def __call__(self, value: Array, **o: Unpack[AsFloat]) -> NDArray[np.float64]: ...
    @overload
    def __call__(self, value: T, **o: Unpack[AsAny]) -> T: ...


def type_as_release(function: Callable[..., Any]) -> ReleaseFunction:
    """Return a function with the types of `ReleaseFunction`."""
    return cast("ReleaseFunction", function)
