"""The private side of the individual filter: a budget of their own for every person.

A ledger reserves the public bound (`IndividualBound`) once. Here live the sums per
person, which are private data: they stay with the data and never enter the ledger.

Examples:
    >>> import numpy as np
    >>> from dpflow.accounting import make_filter
    >>> from dpflow.people import PrivateTally, clip_rows, gaussian_costs
    >>> rule = make_filter("individual", epsilon=1, delta="1e-6", measure="gdp")
    >>> bound = rule.opening()             # reserve this in the ledger, then:
    >>> tally = PrivateTally(bound, people=3)
    >>> rows = np.array([[3.0, 4.0], [0.1, 0.0], [0.0, 0.0]])
    >>> clipped, squares = clip_rows(rows, norm=1)
    >>> active = tally.admit(gaussian_costs(bound, squares, sigma=20))
    >>> total = active.sum(clipped)        # private until sigma = 20 noise is added
    >>> active
    <PrivateMask: withheld>
"""

from __future__ import annotations

from dpflow.accounting.rules.individual import PersonBudgets
from dpflow.people.costs import (
    clip_rows,
    gaussian_costs,
    sampled_gaussian_costs,
    squared_norms,
)
from dpflow.people.state import PrivateMask, PrivateTally
from dpflow.people.store import PersonStore

__all__ = [
    "PersonBudgets",
    "PersonStore",
    "PrivateMask",
    "PrivateTally",
    "clip_rows",
    "gaussian_costs",
    "sampled_gaussian_costs",
    "squared_norms",
]
