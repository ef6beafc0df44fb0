"""Gradients of the network, and the loops of its studies, on made-up images."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from dpflow import PoissonSampledGaussian, Repeated
from dpflow.accounting import make_filter
from dpflow.mechanisms.rows import NormClip
from flows import adaptive_network, fine_tuning, mnist
from flows.adaptive_network import SCHEDULES, SHARE, noisier, smaller
from flows.network import Network, Rehearsal, with_ones
from tests import mnist_images

NETWORK = Network(5, 3, 4)
RNG = np.random.default_rng(3)
ROWS = with_ones(RNG.normal(size=(30, 5)))
KINDS = RNG.integers(0, 4, 30)
WEIGHTS = RNG.normal(size=NETWORK.size).astype(np.float32)


def loss(weights: np.ndarray, person: int) -> float:
    """Return the cross-entropy of one person, in double precision."""
    inner, outer = NETWORK.layers(weights)
    said = np.append(np.tanh(ROWS[person].astype(float) @ inner), 1.0)
    scores = said @ outer
    return float(np.log(np.exp(scores).sum()) - scores[KINDS[person]])


def slopes(person: int) -> np.ndarray:
    """Return the gradient by differences."""
    steps = 1e-5 * np.eye(NETWORK.size)
    at = WEIGHTS.astype(float)
    return np.array(
        [(loss(at + s, person) - loss(at - s, person)) / 2e-5 for s in steps]
    )


@pytest.mark.parametrize("norm", [0.7, 100.0])
def test_both_sums_are_those_of_clipped_gradients(norm: float) -> None:
    """The mechanism's exact one and the fast one, against gradients by differences."""
    each = np.array([slopes(person) for person in range(len(ROWS))])
    lengths = np.linalg.norm(each, axis=1, keepdims=True)
    clipped = each * np.minimum(1, norm / lengths)
    assert (lengths > 0.7).any()
    products = NETWORK.gradients(ROWS, KINDS)(WEIGHTS)
    exact = NormClip.to(Fraction(norm)).apply(products).total()
    assert np.allclose(exact, clipped.sum(axis=0), atol=len(ROWS) * norm / 2**12)
    fast = Rehearsal(NETWORK, ROWS, KINDS, norm, 1.0).total(WEIGHTS, np.arange(30))
    assert np.allclose(fast, clipped.sum(axis=0), atol=1e-3)


def test_the_budget_is_that_of_100_epochs() -> None:
    """And of no more; each notch makes an epoch cheaper."""
    rule = make_filter(SHARE.filter, epsilon=SHARE.epsilon, delta=SHARE.delta)
    step = PoissonSampledGaussian(
        sampling_rate=Fraction(512, 60_000), noise_multiplier=1
    )
    assert rule.admits(rule.price(Repeated(step, 100 * 117)))
    assert not rule.admits(rule.price(Repeated(step, 101 * 117)))
    for setting in (noisier, smaller):
        prices = [rule.price(setting(notch).cost).amounts[0] for notch in range(3)]
        assert prices == sorted(prices, reverse=True)
        assert rule.price(setting(0).cost) == rule.price(Repeated(step, 117))
    assert [smaller(notch).batch for notch in range(4)] == [512, 384, 256, 256]


@pytest.fixture
def clothes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder with made-up clothes."""
    mnist_images.write(tmp_path, monkeypatch, mnist.FASHION)
    for each in (fine_tuning.halves, fine_tuning.pretrained):
        each.cache_clear()
    return tmp_path


def test_the_study_trains_by_every_schedule(
    clothes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line for each, the same for the same seed; the network learns."""
    monkeypatch.setattr(adaptive_network, "HIDDEN", 8)
    monkeypatch.setattr(adaptive_network, "BATCH", 60)
    runs = list(adaptive_network.study(mnist_images.TRAIN, [0], most=12))
    assert [name for name, *_ in runs] == [each.strategy.name for each in SCHEDULES]
    again = list(adaptive_network.study(mnist_images.TRAIN, [0], most=12))
    assert [run[3] for run in again] == [run[3] for run in runs]
    assert adaptive_network.told(*runs[0]).startswith("0 | fixed 1")
