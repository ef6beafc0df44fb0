"""Which place in the people's tallies is whose: by a digest of their id."""

from __future__ import annotations

import hashlib
import numbers
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpflow.people.withheld import Withheld

DIGEST_BYTES = 16
Places = NDArray[np.int64]


def person_digest(key: bytes, person: object) -> bytes | None:
    """Return the digest of a person's id; None if it is no text and no whole number.

    The text "7" and the number 7 are two people.
    """
    if isinstance(person, str):
        text = f"text:{person}"
    elif isinstance(person, numbers.Integral) and not isinstance(person, bool):
        text = f"number:{int(person)}"
    else:
        return None
    plain = text.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(plain, key=key, digest_size=DIGEST_BYTES).digest()


class Slots(Withheld):
    """The digests of all people that were ever seen, in the order of their places.

    The key keeps people from choosing ids that share a place, and the digests short.
    It lies in the same file: the whole is private data.

    Args:
        key: Drawn once for a store.
        digests: One behind the other.
    """

    __slots__ = ("_digests", "_places", "key")

    def __init__(self, key: bytes, digests: bytes = b"") -> None:
        self.key = key
        self._digests = digests
        width = DIGEST_BYTES
        starts = range(0, len(digests), width)
        self._places = {digests[i : i + width]: i // width for i in starts}

    @property
    def people(self) -> int:
        """How many people there are: private data."""
        return len(self._places)

    def place_people(self, people: Iterable[Any]) -> tuple[Slots, Places]:
        """Return the places of people, and the slots with those who are new.

        Args:
            people: Their ids, each once; who has no id that can be used has no place.

        Returns:
            The slots, and int64[people]: places, -1 for none.
        """
        places, fresh, result = self._places, dict[bytes, int](), list[int]()
        for person in people:
            digest = person_digest(self.key, person)
            if digest is None:
                result.append(-1)
                continue
            slot = places.get(digest)
            if slot is None:
                slot = fresh.setdefault(digest, len(places) + len(fresh))
            result.append(slot)
        grown = Slots(self.key, self.to_store() + b"".join(fresh)) if fresh else self
        return grown, np.array(result, np.int64)

    def to_store(self) -> bytes:
        """Return the digests, for a store only."""
        return self._digests
