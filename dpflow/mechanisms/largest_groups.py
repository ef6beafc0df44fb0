"""The largest groups of a table, picked one after the other until an end comes up."""

from __future__ import annotations

import heapq
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from dpflow.accounting.costs.top_k import TopK
from dpflow.mechanisms.drawn import Drawn
from dpflow.mechanisms.groups import people_in
from dpflow.noise.exact import choose

#: Returns an index with a probability proportional to exp(-rate).
Choose = Callable[[Sequence[Fraction]], int]


def top_k(cost: TopK, people: Iterable[Any], groups: Iterable[Any]) -> Drawn[list[Any]]:
    """Name the largest groups, the first pick first; fewer where the end came early.

    Rows without a person or a usable name of a group count for nothing.

    Source: Durfee, Rogers 2019 (arXiv 1905.04273) Alg. 1;
    docs/derivations/output.md#largest-groups.

    Assumes: add-or-remove. How long it takes depends on the counts, as `choose` says.

    Rounding: the end's margin up, to whole people; from there on none.

    Checked by: tests/mechanisms/test_top_k.py, by the exact law of this code.

    Returns:
        The names, and as their cell how many picks were made.
    """
    counts = people_in(people, groups, sys.maxsize)
    drawn = largest(cost, counts, choose=choose)
    return Drawn([name for _, name in drawn.output], drawn.cell)


def largest(
    cost: TopK, counts: Mapping[Any, int], *, choose: Choose
) -> Drawn[list[Any]]:
    """Pick among groups by their counts of people; as `top_k`, which says how.

    Groups that nobody is in fill the places up to `among`; to pick one of them is to
    end.
    """
    ranked = heapq.nlargest(cost.among + 1, counts.items(), key=_rank)
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


def _rank(group: tuple[Hashable, int]) -> tuple[int, str]:
    """Order by people; equal ones by nothing but their names."""
    return group[1], repr(group[0])
