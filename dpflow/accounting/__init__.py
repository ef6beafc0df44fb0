"""Theorems of adaptive composition as pure functions of additive tallies.

Examples:
    >>> from dpflow import Gaussian
    >>> from dpflow.accounting import make_filter
    >>> rule = make_filter("gdp", epsilon=1, delta="1e-6")
    >>> cost = Gaussian(sensitivity=1, sigma=20)
    >>> tally, steps = rule.zero(), 0
    >>> while rule.admits(tally + rule.price(cost)):
    ...     tally, steps = tally + rule.price(cost), steps + 1
    >>> steps
    22
"""

from __future__ import annotations

from importlib import import_module
from inspect import Parameter, signature
from typing import Any

from dpflow.accounting.rules.individual import IndividualBound
from dpflow.accounting.rules.rule import Filter, Odometer, Rule, lower_thresholds
from dpflow.exceptions import DpflowError, InvalidCost
from dpflow.interrupts import without_interrupts
from dpflow.rounding import Number, exact_epsilon

#: Names in policies, and where the theorem lives. Modules load when first used.
FILTERS: dict[str, str] = {
    "basic": "dpflow.accounting.rules.basic:BasicFilter",
    "gdp": "dpflow.accounting.rules.gdp:GdpFilter",
    "individual": "dpflow.accounting.rules.individual:IndividualFilter",
    "output-dp": "dpflow.accounting.rules.output_dp:OutputDpFilter",
    "rdp": "dpflow.accounting.rules.rdp_mixture:make_rdp_filter",
    "residue": "dpflow.accounting.rules.residue:ResidueFilter",
    "rogers": "dpflow.accounting.published.rogers:RogersFilter",
    "sequence": "dpflow.accounting.fixed.sequence:SequenceFilter",
    "whitehouse": "dpflow.accounting.published.whitehouse:WhitehouseFilter",
    "zcdp": "dpflow.accounting.rules.zcdp:ZcdpFilter",
    # The last: of filters that admit equally much, the first is suggested.
    "auto": "dpflow.accounting.rules.auto:AutoFilter",
}
#: Filters that need a list of their steps (`Rule.lists_steps`).
LISTING = ("sequence",)
ODOMETERS: dict[str, str] = {
    "basic": "dpflow.accounting.rules.basic:BasicOdometer",
    "individual": "dpflow.accounting.rules.individual:IndividualOdometer",
    "mixture": "dpflow.accounting.rules.time_uniform:MixtureOdometer",
    "rdp": "dpflow.accounting.rules.rdp_mixture:make_rdp_odometer",
    "rdp-doubling": "dpflow.accounting.rules.rdp_doubling:RdpDoublingOdometer",
    "rogers": "dpflow.accounting.published.rogers:RogersOdometer",
    "stitched": "dpflow.accounting.published.stitched:StitchedOdometer",
}

__all__ = [
    "FILTERS",
    "ODOMETERS",
    "Filter",
    "IndividualBound",
    "Odometer",
    "Rule",
    "make_filter",
    "make_odometer",
]


def make_filter(
    theorem: str, *, epsilon: Number, delta: Number = 0, **options: Any
) -> Filter:
    """Make the filter that a policy names.

    Args:
        theorem: A name in `FILTERS`.
        epsilon: Budget, positive.
        delta: Budget, in [0, 1).
        **options: The theorem's own options, as in a policy; and `thresholds` that are
            pinned, where the solved ones are not lower.

    Raises:
        InvalidCost: If the name, a number or an option is wrong.
    """
    thresholds = options.pop("thresholds", None)
    rule = _make(
        theorem, FILTERS, "filter", {"epsilon": epsilon, "delta": delta, **options}
    )
    if not isinstance(rule, Filter):
        msg = f"{theorem!r} is registered as a filter, but its class is no Filter"
        raise TypeError(msg)
    if thresholds is not None:
        lower_thresholds(rule, thresholds)
    return rule


def make_odometer(
    theorem: str,
    *,
    delta: Number,
    halt_at_epsilon: Number | None = None,
    **options: Any,
) -> Odometer:
    """Make the odometer that a policy names.

    Args:
        theorem: A name in `ODOMETERS`.
        delta: Probability with which the reading may fail, in (0, 1).
        halt_at_epsilon: Reading for which constants that are not given are tuned.
        **options: The theorem's own options, as in a policy.

    Raises:
        InvalidCost: If the name, a number or an option is wrong.
    """
    if halt_at_epsilon is not None:
        target = exact_epsilon(halt_at_epsilon, name="halt_at_epsilon")
        options["halt_at_epsilon"] = target
    rule = _make(theorem, ODOMETERS, "odometer", {"delta": delta, **options})
    if not isinstance(rule, Odometer):
        msg = f"{theorem!r} is registered as an odometer; its class is no Odometer"
        raise TypeError(msg)
    return rule


def _make(
    theorem: str, places: dict[str, str], kind: str, options: dict[str, Any]
) -> Rule:
    target = places.get(theorem) if isinstance(theorem, str) else None
    if target is None:
        msg = f"unknown {kind} {theorem!r}; choose one of: {', '.join(sorted(places))}"
        raise InvalidCost(msg, name=kind, value=theorem)
    module, _, name = target.partition(":")
    theorem_class = getattr(import_module(module), name)
    try:
        rule: Rule = theorem_class(**options)
    except DpflowError:
        raise
    except without_interrupts(TypeError) as error:
        # Python's own text differs from version to version.
        takes = signature(theorem_class).parameters
        wrong = ", ".join(sorted(options.keys() - takes.keys()))
        needed = [n for n in takes if takes[n].default is Parameter.empty]
        missing = ", ".join(n for n in needed if n not in options)
        reason = f"it needs {missing}" if missing else str(error)
        if wrong:
            reason = f"{wrong} is not one of {', '.join(takes)}"
        msg = f"the {kind} {theorem!r} does not take these options: {reason}"
        raise InvalidCost(msg, name=kind, value=theorem) from error
    return rule
