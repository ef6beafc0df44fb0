"""Which theorem prices which cost, and by what source: the table of the docs.

The rows are made by asking every rule for the price of an example of every cost, so
the table cannot say what the code does not do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from dpflow.accounting import FILTERS, ODOMETERS, make_filter, make_odometer
from dpflow.accounting.costs.base import Cost
from dpflow.accounting.costs.composed import Composed, Repeated
from dpflow.accounting.costs.early_stopping import EarlyStopping
from dpflow.accounting.costs.noise import (
    DiscreteGaussian,
    DiscreteLaplace,
    ExponentialMechanism,
    Gaussian,
    Laplace,
    PoissonSampledGaussian,
    RandomizedResponse,
)
from dpflow.accounting.costs.notions import (
    ZCDP,
    ApproxDP,
    ApproxZCDP,
    GaussianDP,
    ProbabilisticDP,
    PureDP,
    RenyiCurve,
    RenyiDP,
)
from dpflow.accounting.costs.outcomes import OutputDP, ProposeTestRelease
from dpflow.accounting.costs.refined import Refined
from dpflow.accounting.costs.sparse_vector import SparseVector
from dpflow.accounting.costs.top_k import TopK
from dpflow.accounting.curves.composed import apart
from dpflow.accounting.curves.prices import (
    approx_dp,
    approx_zcdp,
    gdp_mu_squared,
    probabilistic_dp,
    renyi_divergence,
)
from dpflow.accounting.rules.individual import IndividualBound, PersonBudgets
from dpflow.accounting.rules.residue import residue_pair
from dpflow.accounting.rules.rule import Rule
from dpflow.exceptions import DpflowError, UnsupportedCost

_ORDER = Fraction(8)

#: One of each kind of cost.
EXAMPLES: tuple[Cost, ...] = (
    Gaussian(sensitivity=1, sigma=20),
    DiscreteGaussian(sensitivity=1, sigma=20),
    PoissonSampledGaussian(sampling_rate="0.01", noise_multiplier=1),
    Laplace(sensitivity=1, epsilon="0.1"),
    DiscreteLaplace(sensitivity=1, epsilon="0.1"),
    RandomizedResponse(epsilon="0.1"),
    ExponentialMechanism(epsilon="0.1"),
    PureDP(epsilon="0.1"),
    ApproxDP(epsilon="0.1", delta="1e-9"),
    ProbabilisticDP(epsilon="0.1", delta="1e-9"),
    ZCDP(rho="0.001"),
    ApproxZCDP(rho="0.001", delta="1e-9"),
    RenyiDP(order=32, epsilon="0.01"),
    RenyiCurve({7: "0.004", 8: "0.005", 32: "0.02"}),
    GaussianDP(mu="0.05"),
    OutputDP({"none": 0, "answer": "0.1"}),
    EarlyStopping(Gaussian(sensitivity=1, sigma=40), stops=(5, 10)),
    Refined(Gaussian(sensitivity=1, sigma=20), coarsest=80),
    Refined(Laplace(sensitivity=1, epsilon="0.1"), coarsest=80),
    SparseVector(positives=2, epsilon="0.1"),
    ProposeTestRelease(epsilon="0.1", delta="1e-9"),
    TopK(epsilon="0.1", delta="1e-9", most=2),
    Composed(Gaussian(sensitivity=1, sigma=20), Laplace(sensitivity=1, epsilon="0.1")),
    Repeated(Laplace(sensitivity=1, epsilon="0.01"), 10),
    IndividualBound(measure="rdp", order=32, bound="0.01"),
    PersonBudgets(),
)

_SPLIT = {"delta_loss": "9e-7"}
#: Options with which each theorem is asked, at epsilon 5 and delta 1e-6.
_OPTIONS: dict[tuple[str, str], dict[str, Any]] = {
    ("filter", "zcdp"): _SPLIT,
    ("filter", "whitehouse"): _SPLIT,
    ("filter", "individual"): {"order": _ORDER},
    ("filter", "gdp"): _SPLIT,
    ("filter", "rdp"): {"order": _ORDER, **_SPLIT},
    ("filter", "residue"): _SPLIT,
    ("odometer", "individual"): {"order": _ORDER},
    ("odometer", "rdp"): {"order": _ORDER},
    ("odometer", "rogers"): {"beta": "0.01"},
    ("odometer", "mixture"): _SPLIT,
    ("odometer", "stitched"): _SPLIT,
}

#: How often a sequence has a step: together they are composed sooner than one.
_TOGETHER = 10

#: The notions in which a theorem looks for a price, in its order.
_NOTIONS: dict[str, tuple[Callable[..., Any], ...]] = {
    "basic": (approx_dp,),
    "zcdp": (approx_zcdp,),
    "gdp": (gdp_mu_squared,),
    "individual": (renyi_divergence,),
    "output-dp": (approx_dp,),
    "rdp": (renyi_divergence,),
    "residue": (residue_pair,),
    "rdp-doubling": (renyi_divergence,),
    "rogers": (approx_dp,),
    "whitehouse": (approx_dp, approx_zcdp),
    "mixture": (approx_zcdp,),
    "stitched": (approx_zcdp,),
    "auto": (residue_pair, renyi_divergence, approx_zcdp, approx_dp),
}

_DEFINITION = "By definition."
_PLANNED = "Composed with the whole sequence by its accountant: see `sequence`."
_IN_TURN = "Its parts one after another: derivations/residue.md#the-rule."
_AS_APPROX = "As (epsilon, delta)-DP: derivations/notions.md#probabilistic-dp."
_TANH = "epsilon tanh(epsilon / 2): derivations/notions.md#pure-to-zcdp."
_TANH_DELTA = (
    "epsilon tanh(epsilon / 2) and delta: derivations/notions.md#approximate-to-zcdp."
)
_QUANTILE = "-2 Phi^-1(1 / (1 + e^epsilon)): derivations/notions.md#pure-to-gdp."
_BESIDE = "Its delta apart: derivations/composition.md#steps-with-a-delta."
_WORST_CELL = "As its worst cell: Hartmann et al. 2022, Lemma 4."
_BLACKWELL = "As N(0, 1) against N(mu, 1): Dong, Roth, Su 2022, Thm 2.10."
_ONE_ORDER = "By definition, for its order and those below."
#: Sources of the prices whose functions do not say it themselves.
_SOURCES: dict[tuple[Callable[..., Any], str], str] = {
    (approx_zcdp, "PureDP"): _TANH,
    (approx_zcdp, "ApproxDP"): _TANH_DELTA,
    (approx_zcdp, "ProbabilisticDP"): _AS_APPROX,
    (approx_zcdp, "Laplace"): "epsilon + exp(-epsilon) - 1, arXiv 2510.25746.",
    (approx_zcdp, "ZCDP"): _DEFINITION,
    (approx_zcdp, "ApproxZCDP"): _DEFINITION,
    (approx_zcdp, "GaussianDP"): _BLACKWELL,
    (probabilistic_dp, "ProbabilisticDP"): _DEFINITION,
    (gdp_mu_squared, "Gaussian"): "Dong, Roth, Su 2022 (arXiv 1905.02383v3) Thm 2.7.",
    (gdp_mu_squared, "GaussianDP"): _DEFINITION,
    (gdp_mu_squared, "PureDP"): _QUANTILE,
    (renyi_divergence, "Laplace"): "Mironov 2017 (arXiv 1702.07476v3) Table II.",
    (
        renyi_divergence,
        "PureDP",
    ): "Worst such step is randomized response: Mironov 2017.",
    (renyi_divergence, "RenyiCurve"): "By definition, for its orders.",
    (renyi_divergence, "RenyiDP"): _ONE_ORDER,
    (renyi_divergence, "IndividualBound"): _ONE_ORDER,
}


@dataclass(frozen=True, slots=True)
class Coverage:
    """One cell of the table.

    Attributes:
        kind: "filter" or "odometer".
        theorem: Its name in policies.
        mechanism: Name of the cost.
        example: The cost that was asked for, as it would be constructed.
        priced: Whether the theorem has a price for it.
        reason: Where the price comes from, or why there is none.
    """

    kind: str
    theorem: str
    mechanism: str
    example: str
    priced: bool
    reason: str


def coverage() -> list[Coverage]:
    """Return a row for each cost under each theorem, filters first."""
    theorems = [("filter", name) for name in FILTERS]
    theorems += [("odometer", name) for name in ODOMETERS]
    return [
        _row(kind, theorem, cost) for kind, theorem in theorems for cost in EXAMPLES
    ]


def _row(kind: str, theorem: str, cost: Cost) -> Coverage:
    priced, reason = True, ""
    try:
        rule = _rule(kind, theorem, cost)
        rule.price(cost)
        reason = source_of(kind, theorem, cost)
    except DpflowError as error:
        priced, reason = False, error.message
    return Coverage(kind, theorem, cost.mechanism, repr(cost), priced, reason)


def _rule(kind: str, theorem: str, cost: Cost) -> Rule:
    options = dict(_OPTIONS.get((kind, theorem), {}))
    if kind == "odometer":
        return make_odometer(theorem, delta="1e-6", halt_at_epsilon=5, **options)
    if theorem == "sequence":
        # A sequence knows the costs that it lists; the default accountant is optimal,
        # and for a sampled step alone takes a minute.
        options["steps"] = [{"cost": cost, "times": _TOGETHER}]
    return make_filter(theorem, epsilon=5, delta="1e-6", **options)


def source_of(kind: str, theorem: str, cost: Cost) -> str:
    """Return where a theorem's price of a cost comes from.

    Raises:
        UnsupportedCost: If it has none.
        KeyError: If the theorem's notions are not listed here.
    """
    if cost.paid_by_people:
        return "All that is left, once: docs/derivations/individual.md#from-run-to-run."
    if theorem == "sequence":
        return _PLANNED
    if theorem in ("auto", "residue") and isinstance(cost, Composed):
        return _IN_TURN
    rest, delta = apart(cost)
    if delta and kind == "filter" and theorem in ("gdp", "rdp"):
        return f"{_BESIDE} {source_of(kind, theorem, rest)}"
    substeps = getattr(cost, "substeps", None)
    if substeps is not None:
        step, times = substeps
        return f"{times} times the price of its step. {source_of(kind, theorem, step)}"
    notions = _NOTIONS[theorem]
    if kind == "odometer" and theorem in {"basic", "rogers"}:
        notions = (probabilistic_dp,)
    for notion in notions:
        try:
            notion(cost, _ORDER) if notion is renyi_divergence else notion(cost)
        except UnsupportedCost:
            continue
        return _source(notion, cost)
    msg = f"{theorem} has no notion that prices {cost!r}"
    raise UnsupportedCost(msg, theorem=theorem, mechanism=cost.mechanism)


def _source(notion: Any, cost: Cost) -> str:
    """Return the source that a price function states, or the one listed above."""
    listed = _SOURCES.get((notion, cost.mechanism))
    if listed is not None:
        return listed
    own = notion.dispatch(type(cost))
    if own is notion.dispatch(object) and notion is probabilistic_dp:
        return _source(approx_dp, cost)
    text = (own.__doc__ or "").strip()
    if not text and getattr(cost, "worst_case", None) is not None:
        return _WORST_CELL
    return text.split("\n\n")[0].replace("\n    ", " ")


def prices_page(rows: list[Coverage]) -> str:
    """Write rows as a page: for each cost which rules price it, and by what source."""
    parts = [
        "# Where prices come from",
        (
            "What each cost is priced at, by rule. A rule that is not named "
            "refuses the cost with `UnsupportedCost`."
        ),
    ]
    for example in dict.fromkeys(row.example for row in rows):
        mine = [row for row in rows if row.example == example and row.priced]
        parts += [f"## {mine[0].mechanism}", f"`{example}`", _prices(mine)]
    return "\n\n".join(parts) + "\n"


def _prices(rows: list[Coverage]) -> str:
    """Write the priced rows of a cost as a table, each source once."""
    lines = ["| filters | odometers | source |", "| --- | --- | --- |"]
    for reason in dict.fromkeys(row.reason for row in rows):
        cells = [
            ", ".join(
                f"`{row.theorem}`"
                for row in rows
                if row.reason == reason and row.kind == kind
            )
            for kind in ("filter", "odometer")
        ]
        lines.append(f"| {cells[0]} | {cells[1]} | {reason} |")
    return "\n".join(lines)
