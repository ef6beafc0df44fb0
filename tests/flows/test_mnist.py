"""How images become numbers, and which files are taken for the data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flows import mnist
from tests import mnist_images


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder with made-up digits."""
    mnist_images.write(tmp_path, monkeypatch)
    return tmp_path


def test_an_image_is_a_row_of_norm_one(files: Path) -> None:
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
