"""Which part of all people a store keeps: each person is in one part, for ever."""

from __future__ import annotations

import hashlib
import numbers
from dataclasses import dataclass

from dpflow.exceptions import InvalidCost

MOST_SHARDS = 4096
_HEX_DIGITS = 8


@dataclass(frozen=True, slots=True)
class Shard:
    """One of the parts that all people are divided into; public.

    Attributes:
        number: Which one, from 0.
        of: How many there are.

    Raises:
        InvalidCost: If there is no such part.
    """

    number: int = 0
    of: int = 1

    def __post_init__(self) -> None:
        """Refuse numbers that are none of a part."""
        whole = type(self.number) is int and type(self.of) is int
        if not whole or not 0 <= self.number < self.of <= MOST_SHARDS:
            msg = (
                f"there is no shard {self.number!r} of {self.of!r}: they are counted "
                f"from 0, and there are 1 to {MOST_SHARDS}"
            )
            raise InvalidCost(msg, name="shards", value=repr(self.of))

    def has(self, person: object) -> bool:
        """Say whether a person belongs here."""
        return self.of == 1 or shard_of(person, self.of) == self.number

    @classmethod
    def read(cls, text: str) -> Shard:
        """Return the part that a text names, as `str` wrote it."""
        number, _, of = text.partition(" of ")
        return cls(int(number), int(of))

    def __str__(self) -> str:
        """Name it, for files and errors."""
        return f"{self.number} of {self.of}"


WHOLE = Shard()


def shard_of(person: object, shards: int) -> int | None:
    """Return in which of so many shards a person is; None for who has no id.

    Every database can say the same: of a whole number its rest, never negative; of a
    text the rest of what the first 8 hexadecimal digits of its MD5 (in UTF-8) say. Who
    chooses ids can make shards of unequal size, and nothing else.

    Args:
        person: An id, a text or a whole number.
        shards: How many shards there are.
    """
    if isinstance(person, str):
        plain = person.encode("utf-8", "surrogatepass")
        digits = hashlib.md5(plain, usedforsecurity=False).hexdigest()[:_HEX_DIGITS]
        return int(digits, 16) % shards
    if isinstance(person, numbers.Integral) and not isinstance(person, bool):
        return int(person) % shards
    return None
