"""What a term pinned for its accounts, as its entry says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Data = Mapping[str, Any]


def is_taken_off(pinned: Data, flow: str) -> bool:
    """Say whether a flow may not use a dataset any more."""
    return (
        bool(flow) and flow not in pinned["flows"] and pinned["other_flows"] != "allow"
    )
