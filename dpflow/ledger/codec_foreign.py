"""Which part of the codec stores what libraries made and what users declared.

Each part loads when a value needs it, and with it the library that made the value.
"""

# ruff: noqa: PLC0415 (the parts import their libraries, and `codec` itself)

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dpflow.libraries import comes_from


def pack(packer: Any, value: object) -> dict[str, Any] | None:
    """Return the tree of a foreign value, or None if nobody stores it."""
    from dpflow.ledger import codec_declared

    tree = codec_declared.pack(packer, value)
    if tree is None and (comes_from(value, "numpy") or comes_from(value, "pandas")):
        from dpflow.ledger import codec_frames

        tree = codec_frames.pack(packer, value)
    if tree is None and comes_from(value, "polars"):
        from dpflow.ledger import codec_polars

        tree = codec_polars.pack(packer, value)
    return tree


def unpacker(name: str) -> Callable[..., Any] | None:
    """Return what reads a foreign type of this name, or None if it is no such type."""
    library = name.partition(".")[0]
    if name == "declared":
        from dpflow.ledger import codec_declared

        return codec_declared.unpack
    if library in ("numpy", "pandas"):
        from dpflow.ledger import codec_frames

        return codec_frames.UNPACKERS.get(name)
    if library == "polars":
        from dpflow.ledger import codec_polars

        return codec_polars.UNPACKERS.get(name)
    return None
