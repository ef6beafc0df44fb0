"""Interactions as trees of mechanisms with finitely many outputs.

A rule sees exact prices and cuts the tree where it refuses. The true delta is then a
finite sum, taken here in 50 digits, in both directions: the sum over leaves of
max(0, P - e**epsilon Q).

Most mechanisms are binary pairs (p, q): they announce "top" with probability p under
one dataset and q under the other. Their prices in each notion are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache, partial

from dpflow import ApproxDP, PureDP
from dpflow.accounting import Filter
from dpflow.accounting.rules.auto import AutoFilter
from dpflow.accounting.rules.gdp import GdpFilter
from dpflow.accounting.rules.rdp import RdpFilter
from dpflow.accounting.rules.rdp_mixture import RdpMixtureFilter
from dpflow.accounting.rules.tally import Tally
from dpflow.accounting.searches import most_steps
from dpflow.exceptions import UnsupportedCost
from dpflow.rounding import UNITS
from tests.accounting.oracle import MP, real, renyi_divergence
from tests.accounting.oracle import response as response_law

Admits = Callable[[tuple["Mechanism", ...]], bool]


@dataclass(frozen=True)
class Mechanism:
    """A mechanism with finitely many outputs.

    Attributes:
        outputs: (P, Q) of each output.
        cost: What it declares; None: a binary pair, priced by its two numbers.
    """

    outputs: tuple[tuple[object, object], ...]
    cost: object = None

    def divergence(self, order) -> object:
        """Return the larger of the two directed divergences of an order."""
        turned = [(q, p) for p, q in self.outputs]
        laws = ([*self.outputs], turned)
        return max(renyi_divergence(law, real(order)) for law in laws)

    def epsilon(self) -> object:
        """Return the largest loss."""
        return max(abs(MP.log(p / q)) for p, q in self.outputs)

    def mu(self) -> object:
        """Return the mu of a binary pair: the distance of its normal quantiles."""
        (p, q), _ = self.outputs
        with MP.workdps(50):
            one, other = (MP.erfinv(2 * each - 1) for each in (p, q))
            return MP.sqrt(2) * abs(one - other)


def pair(p, q) -> Mechanism:
    """Make a binary pair."""
    p, q = MP.mpf(p), MP.mpf(q)
    return Mechanism(((p, q), (1 - p, 1 - q)))


def response(epsilon) -> Mechanism:
    """Make randomized response."""
    return Mechanism(tuple(response_law(real(epsilon))), PureDP(epsilon=epsilon))


def reveal(delta) -> Mechanism:
    """Publish everything with probability delta, else nothing."""
    d = real(delta)
    outputs = ((d, MP.mpf(0)), (MP.mpf(0), d), (1 - d, 1 - d))
    return Mechanism(outputs, ApproxDP(epsilon="1e-12", delta=delta))


@dataclass(frozen=True)
class Tree:
    """A mechanism and, per output, what is tried next."""

    mechanism: Mechanism
    after: dict[int, Tree] = field(default_factory=dict)


def leaves(tree: Tree | None, admits: Admits, path=(), p=1, q=1):
    """Yield (P, Q) of each leaf of what the rule lets run."""
    if tree is None or not admits((*path, tree.mechanism)):
        yield p, q
        return
    path = (*path, tree.mechanism)
    for index, (up, down) in enumerate(tree.mechanism.outputs):
        yield from leaves(tree.after.get(index), admits, path, p * up, q * down)


def true_delta(tree: Tree, admits: Admits, epsilon) -> object:
    """Return the exact delta at epsilon of the interaction, in the worse direction."""
    factor = MP.exp(real(epsilon))
    ends = list(leaves(tree, admits))
    assert abs(MP.fsum(p for p, _ in ends) - 1) < MP.mpf("1e-45")
    one = MP.fsum(max(0, p - factor * q) for p, q in ends)
    other = MP.fsum(max(0, q - factor * p) for p, q in ends)
    return max(one, other)


def price(rule: Filter, mechanism: Mechanism) -> tuple[int, ...] | None:
    """Return a mechanism's exact price under a rule, rounded up; None: refused."""
    if isinstance(rule, AutoFilter):
        amounts: list[int] = []
        for member in rule.members:
            own = price(member, mechanism)
            width = len(member.components)
            amounts += (*own, 0) if own is not None else (*(0,) * width, 1)
        return tuple(amounts)
    if mechanism.cost is not None:
        try:
            return rule.price(mechanism.cost).amounts
        except UnsupportedCost:
            return None
    if isinstance(rule, RdpFilter):
        spent = [mechanism.divergence(rule.order)]
    elif isinstance(rule, RdpMixtureFilter):
        spent = [mechanism.divergence(a) for a in rule.orders]
    elif isinstance(rule, GdpFilter):
        spent = [mechanism.mu() ** 2]
    elif rule.theorem == "basic":
        spent = [mechanism.epsilon()]
    else:
        return None
    units = [int(MP.ceil(value * UNITS)) for value in spent]
    return (*units, *(0,) * (len(rule.components) - len(units)))


def by_rule(rule: Filter) -> Admits:
    """Return the rule's decision about a path."""
    own = cache(partial(price, rule))

    def admits(path: Sequence[Mechanism]) -> bool:
        total = rule.zero()
        for mechanism in path:
            amounts = own(mechanism)
            if amounts is None:
                return False
            total = total + Tally(amounts)
        return rule.admits(total)

    return admits


def largest(fits: Callable[[Fraction], bool], high: Fraction) -> Fraction | None:
    """Return the largest of a million parts of `high` that fits."""
    most = most_steps(lambda parts: parts < 10**6 and fits(high * parts / 10**6))
    return high * most / 10**6 if most else None


def widest_pair(fits: Callable[[Mechanism], bool], loss) -> Mechanism:
    """Return the pair of a given loss with the largest p that fits."""
    low, high = MP.mpf("-80"), -loss / 2 if loss < 1 else MP.mpf(-1)
    at = lambda log: pair(MP.exp(log), MP.exp(log - loss))
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(at(middle)) else (low, middle)
    return at(low)


def best_branches(admits: Admits, epsilon, first: Mechanism, losses) -> object:
    """Return the delta of the best pair of each branch after a first mechanism."""
    if not admits((first,)):
        return MP.mpf(0)
    # What fits after the first mechanism does not depend on its output.
    pairs = [widest_pair(lambda m: admits((first, m)), real(loss)) for loss in losses]
    after = {}
    for index, (p, q) in enumerate(first.outputs):
        gained = MP.log(p / q)
        choices = []
        for chosen in pairs:
            up, down = chosen.outputs[0]
            worth = up - MP.exp(real(epsilon) - gained) * down
            choices.append((worth, chosen))
        after[index] = Tree(max(choices, key=lambda choice: choice[0])[1])
    return true_delta(Tree(first, after), admits, epsilon)


def realised(admits: Admits, epsilon, delta, firsts, losses) -> float:
    """Return the largest true delta found over the promised one."""
    highest = max(
        best_branches(admits, epsilon, response(first), losses) for first in firsts
    )
    return float(highest / real(delta))
