"""What a mechanism whose output decides its cost hands back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Drawn(Generic[T]):
    """An output and the cell that it fell into.

    Attributes:
        output: What may be released.
        cell: The cell of the mechanism's cost, by its name or number; read off the
            mechanism's own output, before any post-processing.
    """

    output: T
    cell: str | int
