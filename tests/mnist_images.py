"""Made-up digits in the format of the MNIST files, for tests of the flows on them.

They stand in for the real images, which no test needs: each digit is a blot at a place
of its own, with a few points set at random, so that a linear model learns it.
"""

from __future__ import annotations

import gzip
import hashlib
import struct
from pathlib import Path

import numpy as np
import pytest

from flows import mnist

TRAIN, TEST = 600, 100


def images(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a number of images of 28 x 28 points, and their digits."""
    generator = np.random.default_rng(seed)
    digits = (np.arange(count) % mnist.DIGITS).astype(np.uint8)
    points = generator.integers(0, 60, (count, mnist.SIDE, mnist.SIDE), np.uint8)
    for image, digit in zip(points, digits, strict=True):
        row, column = 2 + 14 * (digit // 5), 1 + 5 * (digit % 5)
        image[row : row + 8, column : column + 4] = 255
    return points, digits


def write(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    collection: mnist.Collection = mnist.MNIST,
) -> None:
    """Write the four files, let `flows.mnist` find them and take them for the real."""
    suffix = ".gz" if collection is mnist.FASHION else ""
    for part, count in (("train", TRAIN), ("t10k", TEST)):
        points, digits = images(count, len(part))
        header = struct.pack(">iiii", 2051, count, mnist.SIDE, mnist.SIDE)
        contents = {
            f"{part}-images-idx3-ubyte": header + points.tobytes(),
            f"{part}-labels-idx1-ubyte": (
                struct.pack(">ii", 2049, count) + digits.tobytes()
            ),
        }
        for name, content in contents.items():
            packed = gzip.compress(content) if suffix else content
            (folder / (name + suffix)).write_bytes(packed)
            digest = hashlib.sha256(content).hexdigest()
            monkeypatch.setitem(collection.files, name + suffix, digest)
    monkeypatch.setenv("DPFLOW_DATA", str(folder))
    mnist._table.cache_clear()
