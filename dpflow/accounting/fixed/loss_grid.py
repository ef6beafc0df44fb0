"""Masses on a grid of privacy losses, and their composition, rounded outward.

A step is its hockey-stick curve at the points of a grid, joined by chords: the curve is
convex in e^epsilon, so the chords lie above it. Steps compose by a Fourier transform of
exponentially tilted masses: tilting keeps the transform's rounding error small relative
to delta, however small delta is.

What cannot be avoided is bounded and added:

* curves are raised by 2^-40 of the mass above each point, masses by a multiple of their
  rounding error;
* grid points are multiples of a power of two, hence exact;
* mass that wraps around the transform only adds; mass above its window is added by
  Chernoff's bound;
* exponents are added up before they are taken, and raised where they would underflow:
  no factor is capped;
* the transform's error in the 2-norm is added through the Cauchy-Schwarz inequality.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln  # type: ignore[import-untyped]

from dpflow.exceptions import InvalidCost
from dpflow.rounding import float_up

Array = NDArray[np.float64]
#: From evenly spaced losses to the hockey-stick divergence, raised above its rounding
#: error by `RAISE` of the mass of larger losses.
Curve = Callable[[Array], Array]

UNIT = 2.0**-53
RAISE = 2.0**-40

_MOST_POINTS = 2**22
_BLOCKS, _SINGLE = 4096, 512
_SIGMAS, _NEGLIGIBLE = 12.0, 30.0
_LARGEST_LOG, _LEAST_WEIGHT = 800.0, -700.0
_TILT_LOW, _TILT_STEP = -320, 1 / 32  # tilts are 2^(notch / 32)
_FARTHER = (*(2.0**-k for k in range(1, 11)), 1.0, 3.0, 6.0, 9.0, 12.0)
_STEEPEST = 30.0  # in logs, from one point to the next: all is then at the largest


@dataclass(frozen=True)
class Masses:
    """Masses on a grid of losses that dominate a step.

    Args:
        masses: float[points], of the losses first, first + 1, ... times the grid step.
        first: Index of the first loss.
        infinite: Mass of an infinite loss.
        count: How often the step runs.
    """

    masses: Array
    first: int
    infinite: float
    count: int


def curve_masses(curve: Curve, step: float, low: int, high: int, count: int) -> Masses:
    """Return masses at low, ..., high that dominate a curve.

    Source: Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022 (arXiv 2207.04380) Alg 1.
    A sum of masses above 1 is harmless: composition preserves domination.

    Assumes: the curve is not below the true one; `step` is a power of two.

    Rounding: up.

    Checked by: tests/accounting/fixed/test_optimal.py.
    """
    values = curve(np.arange(low, high + 1, dtype=np.float64) * step)
    # Raising a value is sound, so rounding noise is ironed out upwards.
    values = np.minimum(np.maximum.accumulate(values[::-1])[::-1], 1.0)
    slopes = -np.diff(values) / math.expm1(step)
    masses = np.zeros_like(values)
    masses[0] = 1 - values[0] - slopes[0]
    masses[1:-1] = slopes[:-1] * math.exp(step) - slopes[1:]
    masses[-1] = slopes[-1] * math.exp(step)
    noise = np.zeros_like(values)
    noise[0] = 4.0
    noise[1:] += slopes
    noise[:-1] += slopes
    masses = np.maximum(masses, 0.0) + 16 * UNIT * noise
    return Masses(masses, low, float(values[-1]), count)


def response_masses(epsilon: Fraction, count: int, step: float, tiny: float) -> Masses:
    """Return masses that dominate some randomized responses together.

    Each loss is split between its neighbours without a change of its mass under both
    datasets: the chord rule for one point. Losses rarer than `tiny` go to infinity.

    Assumes: `step` is a power of two.

    Rounding: up.

    Checked by: tests/accounting/fixed/test_optimal.py.
    """
    lows = np.arange(count + 1)
    eps = float(epsilon)
    ways = gammaln(count + 1) - gammaln(lows + 1) - gammaln(count - lows + 1)
    logs = ways - lows * eps - count * math.log1p(math.exp(-eps))
    size = float(gammaln(count + 1)) + count * (eps + 1)
    weights = np.exp(logs) * (1 + 1e-12 + 32 * UNIT * size)
    losses = np.nextafter((count - 2 * lows) * float_up(epsilon), np.inf)
    frequent = weights > tiny / (count + 1)
    weights, losses, rare = weights[frequent], losses[frequent], weights[~frequent]
    below = np.floor(losses / step).astype(np.int64)
    share = np.expm1(below * step - losses) / math.expm1(-step)
    share += 1e-12 + 8 * UNIT * np.abs(losses) / step
    share = np.clip(share, 0.0, 1.0)
    first = int(below.min())
    masses = np.zeros(int(below.max()) - first + 2)
    np.add.at(masses, below - first, weights * (1 - share))
    np.add.at(masses, below - first + 1, weights * share)
    return Masses(masses * (1 + 1e-12), first, float(rare.sum()) * (1 + 1e-12), 1)


@dataclass(frozen=True)
class _Transformed:
    """A composition under one tilt, on a window of the grid."""

    density: Array
    base: int
    error: float
    cumulant: float
    above: float


class ComposedMasses:
    """The composition of masses on one grid.

    Args:
        groups: What composes.
        step: Distance of the grid points, a power of two.
    """

    def __init__(self, groups: Sequence[Masses], step: float) -> None:
        self.groups, self.step = groups, step
        with np.errstate(divide="ignore"):
            self._logs = [np.log(group.masses) for group in groups]
        self._losses = [
            (np.arange(len(group.masses)) + group.first) * step for group in groups
        ]
        # A tilt decides how tight a bound is, never whether it is one: a coarse look at
        # the masses is enough to choose it.
        self._coarse = [
            _coarsen(group.masses, losses)
            for group, losses in zip(groups, self._losses, strict=True)
        ]
        finite = 0.0
        for group in groups:
            inside = max(1 - group.infinite, 0.0)
            finite += group.count * math.log1p(-group.infinite) if inside else -math.inf
        #: Mass of infinite losses.
        self.infinite = min(-math.expm1(finite) * (1 + 1e-12), 1.0)
        #: The largest finite loss.
        self.top = sum(
            group.count * float(losses[-1])
            for group, losses in zip(groups, self._losses, strict=True)
        )
        self._steepest = math.floor(math.log2(_STEEPEST / step) / _TILT_STEP)
        self._moments: dict[int, tuple[float, float]] = {}
        self._cumulants: dict[float, float] = {}
        self._transformed: dict[tuple[int, int, int], _Transformed] = {}

    def cumulant(self, tilt: float) -> float:
        """Return the log of the moment generating function, rounded up.

        The margin also covers the rounding of the tilted masses, and of the tilt times
        any loss of the sum.
        """
        value = sum(
            group.count * _log_sum(logs + tilt * losses)
            for group, logs, losses in zip(
                self.groups, self._logs, self._losses, strict=True
            )
        )
        largest = max(float(np.abs(x).max()) for x in self._losses)
        runs = sum(group.count for group in self.groups)
        return value + 64 * UNIT * (runs * (tilt * largest + _LARGEST_LOG))

    def best_tilt(self, epsilon: float) -> float:
        """Return roughly the tilt that brings the mean to epsilon."""
        return _tilt(self._best(epsilon))

    def spread(self, epsilon: float) -> float:
        """Return roughly how wide the losses around epsilon are."""
        return _SIGMAS * self._moment(self._best(epsilon))[1]

    def _best(self, epsilon: float) -> int:
        low, high = _TILT_LOW, self._steepest
        while high - low > 1:
            middle = (low + high) // 2
            below = self._moment(middle)[0] < epsilon
            low, high = (middle, high) if below else (low, middle)
        return min(low, high, key=lambda notch: self._exponent(notch, epsilon))

    def _exponent(self, notch: int, epsilon: float) -> float:
        return self._about(_tilt(notch)) - _tilt(notch) * epsilon

    def _about(self, tilt: float) -> float:
        """Return roughly the cumulant."""
        if tilt not in self._cumulants:
            self._cumulants[tilt] = sum(
                group.count * _log_sum(logs + tilt * losses)
                for group, (logs, losses) in zip(self.groups, self._coarse, strict=True)
            )
        return self._cumulants[tilt]

    def least_exponent(self, epsilon: float) -> float:
        """Return roughly the log of Chernoff's bound on losses above epsilon."""
        return self._exponent(self._best(epsilon), epsilon)

    def _tilt_masses(self, tilt: float) -> list[Array]:
        raised = [
            logs + tilt * losses
            for logs, losses in zip(self._logs, self._losses, strict=True)
        ]
        return [np.exp(values - _log_sum(values)) for values in raised]

    def _moment(self, notch: int) -> tuple[float, float]:
        """Return roughly mean and standard deviation of the tilted sum."""
        if notch not in self._moments:
            mean = variance = 0.0
            for group, (logs, losses) in zip(self.groups, self._coarse, strict=True):
                raised = logs + _tilt(notch) * losses
                weights = np.exp(raised - _log_sum(raised))
                centre = float(weights @ losses)
                mean += group.count * centre
                variance += group.count * float(weights @ (losses - centre) ** 2)
            self._moments[notch] = mean, math.sqrt(variance)
        return self._moments[notch]

    def delta(self, epsilon: float) -> float:
        """Return the delta of the composition at epsilon, rounded up."""
        if epsilon >= self.top:
            return self.infinite
        notch = self._best(epsilon)
        transform = self._transform(notch, epsilon)
        losses = (np.arange(len(transform.density)) + transform.base) * self.step
        density, losses = transform.density[losses > epsilon], losses[losses > epsilon]
        # What undoes the tilt may be huge or tiny, and so may each of its factors.
        exponents = transform.cumulant - _tilt(notch) * losses
        peak = float(exponents[0])
        weights = np.exp(np.maximum(exponents - peak, _LEAST_WEIGHT))
        weights *= -np.expm1(epsilon - losses)
        size = float(weights @ density)
        size += float(np.linalg.norm(weights)) * transform.error
        main = math.exp(min(peak + math.log(size), 0.0))
        return min((self.infinite + main + transform.above) * (1 + 1e-9), 1.0)

    def _transform(self, notch: int, epsilon: float) -> _Transformed:
        tilt, (mean, deviation) = _tilt(notch), self._moment(notch)
        spread = _SIGMAS * deviation + 8 * self.step
        bottom = math.floor(min(epsilon, mean - spread) / self.step)
        bound, chernoff = self._upper_tail(notch, deviation)
        top = max(min(bound, self.top), epsilon + 8 * self.step)
        points = _points(top / self.step - bottom)
        key = (notch, bottom, points)
        if key not in self._transformed:
            self._transformed.clear()
            density, error = self._convolve(tilt, points, bottom)
            last = (bottom + points - 1) * self.step
            exponent = min(self.cumulant(chernoff) - chernoff * last, 0.0)
            above = 0.0 if last >= self.top else math.exp(exponent) * (1 + 1e-6)
            self._transformed[key] = _Transformed(
                density, bottom, error, self.cumulant(tilt), above
            )
        return self._transformed[key]

    def _upper_tail(self, notch: int, deviation: float) -> tuple[float, float]:
        """Return a loss with next to no mass above, and the tilt that shows it."""
        tilt = _tilt(notch)
        mean = self._moment(notch)[0]
        goal = self._about(tilt) - tilt * max(mean, 0.0) - _NEGLIGIBLE
        width = max(deviation, self.step)
        tilts = [tilt + k / width for k in _FARTHER]
        tilts += [tilt * factor for factor in (1.02, 1.1, 1.3, 2.0)]
        return min(((self._about(t) - goal) / t, t) for t in tilts)

    def _convolve(self, tilt: float, points: int, base: int) -> tuple[Array, float]:
        """Return the tilted masses of the sum, and a bound on their error in 2-norm.

        A transform of N numbers x errs by at most c u log2(N) |x| (c = 8 is generous),
        a power k of numbers of modulus at most one by k times as much and, by its own
        rounding, by a small multiple of k u.
        """
        spectrum = np.ones(points // 2 + 1, dtype=np.complex128)
        shift, error, runs = 0, 0.0, 0
        for group, weights in zip(self.groups, self._tilt_masses(tilt), strict=True):
            folded = np.zeros(-(-len(weights) // points) * points)
            folded[: len(weights)] = weights
            folded = folded.reshape(-1, points).sum(axis=0)
            spectrum *= np.fft.rfft(folded) ** group.count
            error += group.count * float(np.linalg.norm(folded))
            shift += group.count * group.first
            runs += group.count
        density = np.fft.irfft(spectrum, points)
        norm = float(np.linalg.norm(density))
        bound = 8 * UNIT * math.log2(points) * (error + norm) + 32 * UNIT * runs * norm
        return np.maximum(np.roll(density, shift - base), 0.0), 2 * bound


def _tilt(notch: int) -> float:
    return float(2.0 ** (notch * _TILT_STEP))


def _points(needed: float) -> int:
    if needed > _MOST_POINTS - 2:
        msg = (
            f"the steps need {needed:.3g} grid points, more than {_MOST_POINTS}; use "
            "the accountant rdp or kov, or fewer steps."
        )
        raise InvalidCost(msg, name="steps", value=needed, high=_MOST_POINTS)
    return int(2 ** (math.ceil(needed) + 2).bit_length())


def _log_sum(values: NDArray[Any]) -> float:
    peak = float(values.max())
    return peak + math.log(float(np.exp(values - peak).sum()))


def _coarsen(masses: Array, losses: NDArray[Any]) -> tuple[Array, Array]:
    """Return log masses and mean losses of a few thousand blocks.

    The largest losses are blocks of their own: next to them few masses decide.
    """
    split = max(len(masses) - _SINGLE, 0)
    block = max(-(-split // _BLOCKS), 1)
    starts = np.append(np.arange(0, split, block), np.arange(split, len(masses)))
    sums = np.add.reduceat(masses, starts)
    means = np.add.reduceat(masses * losses, starts)
    positive = sums > 0
    return np.log(sums[positive]), means[positive] / sums[positive]
