"""How large a test that searches is: small at each push, larger in the campaign."""

from __future__ import annotations

import os

#: How much larger than at each push; `make campaign` sets it (docs/campaign.md).
SCALE = float(os.environ.get("DPFLOW_CAMPAIGN", "1"))


def scaled(count: int) -> int:
    """Return how often to do what each push does so often."""
    return max(1, round(count * SCALE))
