"""The largest groups of a table, picked one after the other until an end comes up."""

from __future__ import annotations

import heapq
import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from dpflow.accounting.costs.top_k import TopK
from dpflow.mechanisms.drawn import Drawn, draws_for
from dpflow.mechanisms.groups import people_in
from dpflow.noise.exact import choose
from dpflow.noise.sources import EXACT

logger = logging.getLogger("dpflow")

#: Returns an index with a probability proportional to exp(-rate).
Choose = Callable[[Sequence[Fraction]], int]


@draws_for(TopK, by=EXACT)
def top_k(cost: TopK, people: Iterable[Any], groups: Iterable[Any]) -> Drawn[list[Any]]:
    """Name the groups with the most people, where nobody listed the groups.

    The running step must have declared `TopK`, under a policy whose relation is
    add-or-remove. How many picks were made, the end included, is the cell that is
    charged: a step that ends early leaves epsilon for another one.

    A group has even odds against the end if it has as many people more than the largest
    group that is not looked at as the cost's `margin`, which `dpflow forecast` shows.
    The log repeats it where fewer than `most` names come out.

    Source: Durfee, Rogers 2019 (arXiv 1905.04273) Alg. 1;
    docs/derivations/output-dp.md#largest-groups.

    Assumes: add-or-remove. How long it takes depends on the counts, as `choose` says.

    Rounding: the end's margin up, to whole people; from there on none.

    Checked by: tests/mechanisms/test_top_k.py, by the exact law of this code.

    Args:
        cost: The cost of the running step.
        people: The person of each row; each counts once in a group.
        groups: The group of each row, as for `private_groups`. Rows without a person
            or a usable name of a group count for nothing.

    Returns:
        The names in the order of the picks, at most `most`; fewer where no other group
        stands out.

    Raises:
        ReleaseError: Outside a step with such a cost, if the step has drawn noise
            already, or if there are not as many people as groups.

    Examples:
        >>> @guarded(dataset="shop", cost=TopK(epsilon=1, delta="1e-7", most=10))
        ... def best_sold(sales):
        ...     return top_k(sales["customer"], sales["product"])
    """
    counts = people_in(people, groups, sys.maxsize)
    drawn = largest(cost, counts, choose=choose)
    names = [name for _, name in drawn.output]
    if len(names) < cost.most:
        logger.warning(
            "top_k() named %d of at most %d groups: a group has even odds against the "
            "end with %d people more than the largest group beyond the %d that it "
            "looks at",
            *(len(names), cost.most, cost.margin, cost.among),
        )
    return Drawn(names, drawn.cell)


def largest(
    cost: TopK, counts: Mapping[Any, int], *, choose: Choose
) -> Drawn[list[Any]]:
    """Pick among groups by their counts of people; as `top_k`, which says how.

    Groups that nobody is in fill the places up to `among`; to pick one of them is to
    end.
    """
    # By people; equal ones by nothing but their names.
    ranked = heapq.nlargest(
        cost.among + 1, counts.items(), key=lambda group: (group[1], repr(group[0]))
    )
    left = ranked[: cost.among]
    beyond = ranked[cost.among][1] if len(ranked) > cost.among else 0
    ends = [0] * (cost.among - len(left)) + [beyond + cost.margin]
    picked: list[Any] = []
    while len(picked) < cost.most:
        scores = [count for _, count in left] + ends
        index = choose([cost.pick * (max(scores) - score) for score in scores])
        if index >= len(left):
            return Drawn(picked, len(picked) + 1)
        picked.append(left.pop(index)[0])
    return Drawn(picked, cost.most)
