"""What every part of the codec writes: trees of plain JSON values, within limits."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, Protocol

from dpflow.exceptions import ReleaseError

#: Longest text that a ledger row holds, in characters (all of them ASCII).
MAX_TEXT = 16 * 2**20

#: Deepest nesting of containers.
MAX_DEPTH = 50

#: The key that marks a JSON object as a typed value.
TYPE_KEY = "$type"

#: A typed value.
Node = dict[str, Any]
#: Returns the tree of one value.
Pack = Callable[["Packer", Any], Any]
#: Reads one nested value.
Unpack = Callable[[Any], Any]


class Part(Protocol):
    """A file that knows some types."""

    @property
    def UNPACKERS(self) -> Mapping[str, Callable[[Node, Unpack], Any]]:  # noqa: N802
        """How to read each type of node that it writes."""

    def packer_of(self, value: object) -> Pack | None:
        """Return what writes a value; None if it is of no type that this part knows."""


class Packer:
    """Turns one value into a tree of plain JSON values, within the limits.

    Args:
        packer_of: Returns what writes a value.
    """

    def __init__(self, packer_of: Callable[[object], Pack]) -> None:
        self._packer_of = packer_of
        self._depth = 0
        self._room = MAX_TEXT + 1

    def take(self, characters: int) -> None:
        """Account for text to come, so that no huge tree is built in vain."""
        self._room -= characters
        if self._room < 0:
            raise _too_large()

    def pack(self, value: Any) -> Any:
        """Return the tree of a value."""
        # A value and its comma; of a list's two brackets one stands for a comma.
        self.take(2)
        if self._depth > MAX_DEPTH:
            raise too_deep()
        pack = self._packer_of(value)
        self._depth += 1
        tree = pack(self, value)
        self._depth -= 1
        return tree

    def text(self, text: str) -> str:
        """Return a text, accounted for."""
        self.take(len(text))
        return text

    def pack_all(self, values: Iterable[Any]) -> list[Any]:
        """Return the trees of several values."""
        return [self.pack(value) for value in values]


def node(kind: str, **members: Any) -> Node:
    """Return a typed value."""
    return {TYPE_KEY: kind, **members}


def to_base64(data: bytes) -> str:
    """Write bytes as text."""
    return base64.b64encode(data).decode("ascii")


def from_base64(text: str) -> bytes:
    """Read bytes from text, strictly."""
    return base64.b64decode(text, validate=True)


def member(tree: Node, name: str, kind: type) -> Any:
    """Return a member of a typed node, which must have exactly the given type."""
    value = tree[name]
    if type(value) is not kind:
        raise TypeError(name)
    return value


def not_canonical(_: object = None) -> NoReturn:
    """Refuse a text that `encode` would not have written."""
    msg = "not canonical"
    raise ValueError(msg)


def unstorable(value: object, hint: str) -> ReleaseError:
    """Build the error for a value that cannot be stored; it names the type only."""
    kind = type(value)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    name = f"{module}{kind.__qualname__}"
    return ReleaseError(f"a value of type {name} cannot be stored; {hint}.", type=name)


def check_length(text: str) -> None:
    """Refuse a text beyond the limit.

    Raises:
        ReleaseError: If it is too long.
    """
    if len(text) > MAX_TEXT:
        raise _too_large()


def _too_large() -> ReleaseError:
    return ReleaseError(
        f"the value needs more than {MAX_TEXT // 2**20} MiB of text and cannot be "
        "stored; release fewer numbers, or a numpy array in place of a list."
    )


def too_deep() -> ReleaseError:
    """Build the error for a value that is nested too deeply."""
    return ReleaseError(
        f"the value is nested deeper than {MAX_DEPTH} levels (or contains itself) and "
        "cannot be stored; release a flatter value."
    )
