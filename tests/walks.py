"""All paths through the choices of a run, each with its probability."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any


class Walk:
    """One path through the choices of a run."""

    def __init__(self, path: list[int]) -> None:
        self.path, self.seen, self.chance = path, [], 1

    def take(self, chances: Sequence[Any]) -> int:
        """Take the choice that the path says, the first beyond its end."""
        at = len(self.seen)
        index = self.path[at] if at < len(self.path) else 0
        self.seen.append((index, len(chances)))
        self.chance *= chances[index]
        return index

    def following(self) -> list[int] | None:
        """Return the next path in order, or None after the last."""
        seen = list(self.seen)
        while seen and seen[-1][0] + 1 == seen[-1][1]:
            seen.pop()
        return [*(k for k, _ in seen[:-1]), seen[-1][0] + 1] if seen else None


def law_of(run: Callable[[Walk], Hashable]) -> dict[Any, Any]:
    """Return the probability of each result of a run."""
    results: dict[Any, Any] = {}
    path: list[int] | None = []
    while path is not None:
        walk = Walk(path)
        result = run(walk)
        results[result] = results.get(result, 0) + walk.chance
        path = walk.following()
    return results
