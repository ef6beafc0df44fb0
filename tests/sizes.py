"""How large a test that searches is: small at each push, larger in the campaign."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeVar

Case = TypeVar("Case")

#: How much larger than at each push; `make campaign` sets it (docs/campaign.md).
SCALE = float(os.environ.get("DPFLOW_CAMPAIGN", "1"))


def scaled(count: int, push: int | None = None) -> int:
    """Return how often to do what a campaign of size one does so often.

    Args:
        count: How often in a campaign of size one.
        push: How often at each push, and in smaller runs, where so few find the
            controls, too.
    """
    if push is not None and SCALE <= 1:
        return push
    return max(1, round(count * SCALE))


def spread(cases: Iterable[Case], count: int) -> list[Case]:
    """Return the first case, the last and others in even steps: `count` at each push.

    For long lists of which each case takes long; the campaign takes all of them.
    """
    every = list(cases)
    if SCALE > 1 or count >= len(every):
        return every
    last = len(every) - 1
    return [every[round(k * last / max(count - 1, 1))] for k in range(count)]
