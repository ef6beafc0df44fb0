"""How people become numbers, one by one, and which files are taken for the data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flows import adult, mnist
from tests import adult_people, mnist_images


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder with two hundred people."""
    adult_people.write(tmp_path, monkeypatch, people=200)
    return tmp_path


def test_everybody_is_a_row_of_norm_at_most_one(files: Path) -> None:
    """Of both files; the first line of the test file is no person."""
    features, labels = adult.people()
    assert features.shape == (200, 49)
    assert labels.mean() == pytest.approx(
        np.mean([number % 16 + 1 > 11 for number in range(200)])
    )
    assert np.linalg.norm(features, axis=1).max() <= 1


def test_replacing_a_person_changes_one_row(monkeypatch, files):
    """The order is that of places: no other row moves."""
    before, _ = adult.people()
    original = adult_people.row

    def row(number: int) -> str:
        text = original(number)
        return text.replace(str(17 + number % 74), "90", 1) if number == 7 else text

    monkeypatch.setattr(adult_people, "row", row)
    adult_people.write(files, monkeypatch, people=200)
    after, _ = adult.people()
    assert int((before != after).any(axis=1).sum()) == 1


@pytest.fixture
def pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder with made-up digits."""
    mnist_images.write(tmp_path, monkeypatch)
    return tmp_path


def test_an_image_is_a_row_of_norm_one(pictures: Path) -> None:
    """Means of 2 x 2 points, of the image alone."""
    features, digits = mnist.train()
    assert features.shape == (mnist_images.TRAIN, mnist.FEATURES)
    assert np.allclose(np.linalg.norm(features, axis=1), 1)
    points, expected = mnist_images.images(mnist_images.TRAIN, len("train"))
    assert (digits == expected).all()
    first = points[0].astype(float)
    means = [first[r : r + 2, c : c + 2].mean() for r in (0, 2) for c in (0, 2)]
    pixels = features[0].reshape(14, 14)[:2, :2].ravel()
    assert np.allclose(pixels / pixels[0], np.array(means) / means[0])
