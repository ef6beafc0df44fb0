"""A small network: one hidden layer with tanh, and its gradients person by person.

The gradient of a dense layer is, for each person, the product of what went in and of
the error that came back. So its norm is the product of two norms, and the sum of
clipped gradients is a product of two matrices, without any person's whole gradient.
`gradients` gives these products to a mechanism, which sums them exactly and draws exact
noise. `Rehearsal` does the same in single precision with numpy's noise, a hundred times
faster, and is for public data outside of any budget only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpflow.mechanisms import Factors, LayerRows

Singles = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]

HIDDEN = 100


@dataclass(frozen=True, slots=True)
class Network:
    """The shape of a network, with weights as one vector; biases are last rows.

    Attributes:
        features: Numbers that go in.
        hidden: Numbers between the layers.
        classes: Numbers that come out.
    """

    features: int
    hidden: int
    classes: int

    @property
    def first(self) -> int:
        """How many weights the first layer has."""
        return (self.features + 1) * self.hidden

    @property
    def size(self) -> int:
        """How many weights there are."""
        return self.first + (self.hidden + 1) * self.classes

    def start(self, seed: int) -> Singles:
        """Return weights as Glorot and Bengio 2010 draw them; the last layer is zero.

        They are drawn before any data is seen.
        """
        weights = np.zeros(self.size, np.float32)
        inner, _ = self.layers(weights)
        limit = (6 / (self.features + self.hidden)) ** 0.5
        generator = np.random.default_rng(seed)
        inner[:-1] = generator.uniform(-limit, limit, inner[:-1].shape)
        return weights

    def layers(self, weights: npt.NDArray[Any]) -> tuple[Any, Any]:
        """Return both layers as views of the weights."""
        inner = weights[: self.first].reshape(self.features + 1, self.hidden)
        return inner, weights[self.first :].reshape(self.hidden + 1, self.classes)

    def inside(self, weights: npt.NDArray[Any], rows: Singles) -> Singles:
        """Return what the hidden layer says of each row, with a one behind it."""
        inner, _ = self.layers(weights.astype(np.float32, copy=False))
        return with_ones(np.tanh(rows @ inner))

    def right(self, weights: npt.NDArray[Any], rows: Singles, labels: Labels) -> int:
        """Return for how many rows a network is right."""
        _, outer = self.layers(weights.astype(np.float32, copy=False))
        scores = self.inside(weights, rows) @ outer
        return int((scores.argmax(axis=1) == labels).sum())

    def errors(
        self, weights: npt.NDArray[Any], rows: Singles, labels: Labels
    ) -> tuple[Singles, Singles, Singles]:
        """Return what the hidden layer says, and the errors before both layers' sums.

        A person's errors depend on their row and the weights alone.
        """
        _, outer = self.layers(weights.astype(np.float32, copy=False))
        inside = self.inside(weights, rows)
        last = softmax(inside @ outer)
        last[np.arange(len(labels)), labels] -= 1
        said = inside[:, :-1]
        return inside, (last @ outer[:-1].T) * (1 - said * said), last

    def gradients(self, rows: Singles, labels: Labels) -> Callable[[Any], LayerRows]:
        """Return a function from weights to each person's gradient, as products."""
        features = Factors(rows)

        def products(weights: Any) -> LayerRows:
            inside, first, last = self.errors(weights, rows, labels)
            return LayerRows((features.outer(first), Factors(inside).outer(last)))

        return products

    def last_gradients(
        self, frozen: Singles, rows: Singles, labels: Labels
    ) -> Callable[[Any], LayerRows]:
        """Return a function from the last layer's weights to each person's gradient.

        Args:
            frozen: Weights whose first layer stays.
            rows: As in `gradients`.
            labels: As in `gradients`.
        """
        inside = self.inside(frozen, rows)
        features, wanted = Factors(inside), np.eye(self.classes)[labels]

        def products(weights: Any) -> LayerRows:
            scores = inside @ np.reshape(weights, (-1, self.classes))
            return LayerRows((features.outer(softmax(scores) - wanted),))

        return products


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """Training on public data, outside of any budget: fast, with numpy's noise.

    Attributes:
        network: What is trained.
        rows: float32[people, features + 1], with ones behind.
        labels: One for each of the people.
        norm: Longest gradient.
        rate: Learning rate, of the mean gradient.
        frozen: How many weights, the first ones, stay: none or the first layer's.
    """

    network: Network
    rows: Singles
    labels: Labels
    norm: float
    rate: float
    frozen: int = 0

    def step(
        self,
        weights: Singles,
        generator: np.random.Generator,
        *,
        noise: float,
        batch: int,
    ) -> Singles:
        """Return the weights after a noisy step on a Poisson sample."""
        people = len(self.rows)
        drawn = np.flatnonzero(generator.random(people, np.float32) < batch / people)
        total = self.total(weights, drawn)
        spread = np.float32(noise * self.norm)
        total += spread * generator.standard_normal(total.size, np.float32)
        moved = weights.copy()
        moved[self.frozen :] -= np.float32(self.rate / batch) * total
        return moved

    def total(self, weights: Singles, who: npt.NDArray[np.int64]) -> Singles:
        """Return the sum of clipped gradients, up to the rounding of floats."""
        rows = self.rows[who]
        inside, first, last = self.network.errors(weights, rows, self.labels[who])
        squares = _squares(inside) * _squares(last)
        if not self.frozen:
            squares += _squares(rows) * _squares(first)
        # Somebody whose gradient is zero needs no scaling.
        lengths = np.sqrt(np.maximum(squares, np.float32(1e-20)))
        scale = np.minimum(1, np.float32(self.norm) / lengths)[:, None]
        outer: Singles = (inside.T @ (last * scale)).ravel()
        if self.frozen:
            return outer
        return np.concatenate([(rows.T @ (first * scale)).ravel(), outer])


def with_ones(rows: npt.NDArray[Any]) -> Singles:
    """Return rows with a one behind each, for the bias."""
    ones = np.ones((len(rows), 1), np.float32)
    return np.concatenate([rows.astype(np.float32, copy=False), ones], axis=1)


def softmax(scores: Singles) -> Singles:
    """Return chances of the classes; `scores` is used up."""
    scores -= scores.max(axis=1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=1, keepdims=True)
    return scores


def _squares(rows: Singles) -> Singles:
    squares: Singles = np.einsum("ij,ij->i", rows, rows)
    return squares
