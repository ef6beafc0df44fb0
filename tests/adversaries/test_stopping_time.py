"""The stopping-time adversary and the best adaptive one, computed exactly.

The first repeats one step and stops as soon as the loss exceeds the reading (Rogers
et al. Thm 6.1, Alg 5); a recursion over (steps, ups) gives its probability. The second
also picks the size of each step from the outputs so far, by backward induction.

Error: all terms are non-negative, so nothing cancels. A path of n steps is a product of
n factors, each within 2**-53 of the truth and rounded at most three times: a relative
error below n * 2**-50. States that weigh less than 1e-25 are dropped and their weight
is added to the upper end.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from dpflow import ApproxDP, Cost, PureDP
from dpflow.accounting import Odometer, make_odometer
from dpflow.accounting.curves.prices import renyi
from dpflow.accounting.rules.tally import Tally
from dpflow.costs import ProbabilisticDP
from dpflow.exceptions import UnsupportedCost
from dpflow.rounding import units_up
from tests import wrong_odometers
from tests.sizes import spread
from tests.tables import read_tables
from tests.wrong_odometers import windows_divergence

ROUNDING = 1e-10


def crossing(epsilon, readings, *, up=None, infinite=0.0, two_sided=False):
    """Bound the probability that the loss ever exceeds its reading.

    Args:
        epsilon: Each step's loss is epsilon or -epsilon.
        readings: Of the odometer after 1, 2, ... steps.
        up: Probability of +epsilon; default: randomized response.
        infinite: Probability of an infinite loss at each step.
        two_sided: Whether a loss below minus the reading counts as well.
    """
    assert len(readings) * 2.0**-50 < ROUNDING
    p = float(1 / (1 + mpmath.exp(-mpmath.mpf(float(epsilon))))) if up is None else up
    q = 1 - p - infinite
    # Per number of steps, how many ups make the loss exceed the reading.
    tops = [
        math.floor((Fraction(bound) / epsilon + steps) / 2) + 1
        if bound < math.inf
        else steps + 1
        for steps, bound in enumerate(readings, start=1)
    ]
    state, low, crossed, dropped = np.ones(1), 0, 0.0, 0.0
    for steps, top in enumerate(tops, start=1):
        if infinite and readings[steps - 1] < math.inf:
            crossed += infinite * float(state.sum())
        moved = np.zeros(len(state) + 1)
        moved[1:] = p * state
        moved[:-1] += q * state
        cut = max(top - low, 0)
        crossed += float(moved[cut:].sum())
        moved = moved[:cut]
        if two_sided:
            # -loss > reading: by symmetry, at least `top` downs.
            bottom = min(max(steps - top + 1 - low, 0), len(moved))
            crossed += float(moved[:bottom].sum())
            moved, low = moved[bottom:], low + bottom
        if steps % 32 == 0 and len(moved):
            light = int(np.argmax(moved > 1e-25))
            dropped += float(moved[:light].sum())
            moved, low = moved[light:], low + light
        state = moved
        if not len(state):
            break
    return crossed * (1 - ROUNDING), (crossed + dropped) * (1 + ROUNDING)


def readings_of(odometer: Odometer, cost: Cost, steps: int) -> list[float]:
    """Return the readings after 1, 2, ... equal steps."""
    price = odometer.price(cost)
    return [odometer.read(price.times(n)) for n in range(1, steps + 1)]


def divergence(order: Fraction | int, epsilon: float) -> float:
    """Return the divergence of a pure step."""
    return float(renyi(PureDP(epsilon=str(epsilon)), Fraction(order)))


def full_delta_at_every_order(epsilon: float, delta: float, steps: int) -> list[float]:
    """Return the mistake: the least reading of several orders, each at all of delta."""
    lines = [
        (math.log(1 / delta) / float(order - 1), divergence(order, epsilon))
        for order in map(Fraction, ORDERS)
    ]
    return [min(a + n * b for a, b in lines) for n in range(1, steps + 1)]


def tight_conversion(epsilon: float, delta: float, steps: int) -> list[float]:
    """Return the mistake: the tight conversion of order 3, read after every step."""
    start = math.log(2 / 3) - (math.log(delta) + math.log(3)) / 2
    return [start + n * divergence(3, epsilon) for n in range(1, steps + 1)]


TABLES = read_tables(__file__)
ORDERS = ["1.5", 2, 3, 4, 6, 8, 16, 32]


@pytest.mark.parametrize("row", TABLES["mistakes"])
def test_a_known_mistake_fails_the_audit(row):
    """Each mistake is crossed with the stated probability, far more than delta."""
    name, epsilon, steps, delta, stated = row
    rule = globals().get(name) or getattr(wrong_odometers, name)
    low, high = crossing(Fraction(epsilon), rule(float(epsilon), delta, steps))
    assert low > delta * 1.5
    assert abs(low / stated - 1) < 1e-9
    assert high / low - 1 < 1e-9


def test_the_corrected_forms_reach_the_stated_probabilities():
    """With their drift, both published odometers stay below delta, as stated."""
    for name, options, stated in TABLES["corrected"]:
        odometer = make_odometer(name, delta="0.01", form="pure", **options)
        readings = readings_of(odometer, PureDP(epsilon="0.01"), 10_000)
        low, high = crossing(Fraction("0.01"), readings)
        assert high <= 0.01
        assert abs(low / stated - 1) < 1e-9


def shipped(delta: str, variance: str) -> list[Odometer]:
    """Return every odometer of this family, tuned near a variance."""
    order = 1 + math.sqrt(2 * math.log(1 / float(delta)) / float(variance))
    tuned = {"variance": variance, "order": f"{order:.4f}"}
    return [
        make_odometer(
            name, delta=delta, **{k: tuned.get(v, v) for k, v in more.items()}
        )
        for name, more in TABLES["odometers"]
    ]


@pytest.mark.parametrize(
    ("epsilon", "steps", "delta", "variance"), spread(TABLES["settings"], 2)
)
def test_no_shipped_odometer_is_crossed_more_often_than_delta(
    epsilon, steps, delta, variance
):
    """The adversary's best stopping time beats no odometer more often than delta."""
    step = PureDP(epsilon=epsilon)
    realised = {}
    for odometer in shipped(delta, variance):
        two_sided = "'two'" in repr(odometer) or odometer.theorem == "rogers"
        low, high = crossing(
            Fraction(epsilon), readings_of(odometer, step, steps), two_sided=two_sided
        )
        assert high <= float(delta), odometer
        realised[repr(odometer)] = low / float(delta)
    # The audit has teeth: some odometer is used to more than a third of its delta.
    assert max(realised.values()) > 0.35


def reading_of(odometer: Odometer, epsilon: Fraction) -> Callable[[int, int], float]:
    """Return the reading after numbers of steps of epsilon and of 2 epsilon."""
    small, large = (odometer.price(PureDP(epsilon=n * epsilon)) for n in (1, 2))
    return lambda a, b: odometer.read(small.times(a) + large.times(b))


def best_adaptive(reading, epsilon, steps):
    """Return the success probability of the best adversary with two step sizes.

    Backward induction over (small steps, large steps, loss): before each step the
    adversary chooses epsilon or 2 epsilon, or stops. Exact but for rounding.
    """
    ups = [1 / (1 + math.exp(-n * float(epsilon))) for n in (1, 2)]
    reach = 2 * steps + 2
    grid = np.arange(-reach, reach + 1)

    def crossed(a: int, b: int) -> np.ndarray:
        return grid > math.floor(Fraction(reading(a, b)) / epsilon)

    def ahead(values: np.ndarray, size: int, up: float) -> np.ndarray:
        out = np.zeros_like(values)
        out[size:-size] = up * values[2 * size :] + (1 - up) * values[: -2 * size]
        return out

    later: dict[tuple[int, int], np.ndarray] = {}
    for total in range(steps, -1, -1):
        now = {}
        for a in range(total + 1):
            b = total - a
            best = np.zeros(len(grid))
            if total < steps:
                best = np.maximum(
                    ahead(later[a + 1, b], 1, ups[0]), ahead(later[a, b + 1], 2, ups[1])
                )
            now[a, b] = np.where(crossed(a, b), 1.0, best)
        later = now
    return float(later[0, 0][reach])


@pytest.mark.parametrize("delta", ["0.05", "0.001"])
def test_no_adaptive_choice_of_steps_beats_an_odometer(delta):
    """The best adversary that chooses each step's size stays below delta."""
    games = itertools.product(("0.02", "0.2", "0.7"), shipped(delta, "2"))
    # At each push every second one: all odometers, all sizes.
    for size, odometer in spread(games, 16):
        unit = Fraction(size)
        reached = best_adaptive(reading_of(odometer, unit), unit, 40)
        assert reached * (1 + ROUNDING) <= float(delta), odometer


@pytest.mark.parametrize(("theorem", "options", "share"), TABLES["orders"])
def test_rdp_odometers_are_crossed_nearly_delta_often(theorem, options, share):
    """With one order and several; the choosing adversary does no better than delta."""
    reached = []
    for epsilon, steps, delta in (("0.5", 1000, "0.05"), ("0.1", 2000, "0.01")):
        rule = make_odometer(theorem, delta=delta, **options)
        readings = readings_of(rule, PureDP(epsilon=epsilon), steps)
        low, high = crossing(Fraction(epsilon), readings)
        assert high <= float(delta)
        reached.append(low / float(delta))
    assert max(reached) >= share
    rule, step = make_odometer(theorem, delta="0.05", **options), PureDP(epsilon="0.4")
    result = best_adaptive(reading_of(rule, step.epsilon), step.epsilon, 40)
    repeated, _ = crossing(step.epsilon, readings_of(rule, step, 40))
    assert repeated <= result <= 0.05 * (1 - ROUNDING)


def test_a_persons_own_reading_holds_at_every_stopping_time():
    """The odometer of one person, charged the divergence of each step.

    Negative control: the windows of Feldman and Zrnic (Alg. 2), whose number must be
    fixed in advance, by the conversion that would hold for those.
    """
    order, unit, delta = 4, Fraction(1, 5), 0.05
    costs = [divergence(order, float(n * unit)) for n in (1, 2)]
    odometer = make_odometer("individual", delta=str(delta), order=order)

    def own(a: int, b: int) -> float:
        spent = Fraction((a * costs[0] + b * costs[1]) * (1 + 1e-13))
        return odometer.read(Tally((units_up(spent), 0)))

    assert 0.5 * delta < best_adaptive(own, unit, 80) <= delta * (1 - ROUNDING)
    tight = math.log((order - 1) / order) - math.log(delta * order) / (order - 1)

    def windows(a: int, b: int) -> float:
        # Double steps first: a window each, so that hardly anything is wasted.
        path = [costs[1]] * b + [costs[0]] * a
        return float(windows_divergence(path, window=costs[1])) + tight

    assert best_adaptive(windows, unit, 40) > 1.2 * delta


@pytest.mark.parametrize(("epsilon", "steps", "own", "infinite"), TABLES["own_deltas"])
def test_steps_with_a_delta_of_their_own(epsilon, steps, own, infinite):
    """The harshest probabilistic DP steps stay below delta_loss plus their deltas.

    Mass `infinite` of P has infinite loss, mass `own` of Q has loss minus infinity, and
    the rest has loss +-epsilon: p exp(-e) + (1 - infinite - p) exp(e) = 1 - own.
    """
    size, e = Fraction(epsilon), float(epsilon)
    up = ((1 - infinite) * math.exp(e) - 1 + float(own)) / (2 * math.sinh(e))
    assert 0 < up <= 1 - infinite
    delta = Fraction("0.05") + steps * Fraction(own)
    room = {"delta": str(float(delta)), "delta_loss": "0.05"}
    variance = str(float(steps * size**2))
    step = ProbabilisticDP(epsilon=epsilon, delta=own)
    odometers = [
        make_odometer(name, form=form, **room, **{option: variance})
        for form in ("pure", "zcdp")
        for name, option in (("mixture", "rho"), ("stitched", "v0"))
    ]
    odometers += [
        make_odometer("rogers", delta=str(float(delta)), beta=variance),
        make_odometer("basic", delta=str(float(delta))),
    ]
    for odometer in odometers:
        readings = readings_of(odometer, step, steps)
        _, high = crossing(size, readings, up=up, infinite=infinite)
        assert high <= float(delta), odometer


def test_steps_that_are_only_approximately_private_break_a_loss_odometer():
    """An (epsilon, delta)-DP pair loses more than epsilon 10.5 delta often.

    So every odometer that reads a loss must refuse the step; here is the pair and what
    the printed Lemma 2.3 would claim about it.
    """
    epsilon, delta, p, q = 0.1, 1e-3, 0.01050833184, 0.008603494436
    for first, second in ((p, q), (q, p), (1 - p, 1 - q), (1 - q, 1 - p)):
        assert first <= math.exp(epsilon) * second + delta * (1 + 1e-6)
    assert math.log(p / q) > 2 * epsilon - 1e-9
    assert p > 10.5 * delta
    assert 2 * delta / math.exp(epsilon) < 0.0018097
    for odometer in shipped("0.05", "1"):
        with pytest.raises(UnsupportedCost):
            odometer.price(ApproxDP(epsilon="0.1", delta="0.001"))
        tally = odometer.charge(ApproxDP(epsilon="0.1", delta="0.001"))
        assert odometer.read(tally) == math.inf
