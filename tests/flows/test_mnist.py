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
    found = features[0].reshape(14, 14)[:2, :2].ravel()
    assert np.allclose(found / found[0], np.array(means) / means[0])


def test_edges_tell_direction_and_place() -> None:
    """A bar that stands counts as edges to its sides, in the cells where it is."""
    points = np.zeros((1, 28, 28), np.float32)
    points[0, 8:20, 14:16] = 255
    found = mnist._edges(points).reshape(7, 7, mnist.DIRECTIONS) ** 2
    assert found[3, 3].argmax() == 0
    # The points beside each side differ by all there is: three columns in this cell.
    assert found[3, 3, 0] == pytest.approx(4 * 3)
    assert (found[:, :3] == 0).all()
    turned = (
        mnist._edges(points.transpose(0, 2, 1)).reshape(7, 7, mnist.DIRECTIONS) ** 2
    )
    assert turned[3, 3].argmax() == mnist.DIRECTIONS // 2
    assert found.sum() == pytest.approx(turned.sum(), rel=1e-6)
