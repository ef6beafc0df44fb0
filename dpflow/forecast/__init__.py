"""What the budget is still good for: runs left, and until when.

Pure functions of gates, tallies and workloads; only `outlooks` reads a ledger, and
nothing here writes one.
"""

from __future__ import annotations

from dpflow.forecast.cadence import Every, Schedule
from dpflow.forecast.gates import loads_of
from dpflow.forecast.loads import Load, load_of, runs_left
from dpflow.forecast.outlook import Outlook, outlook_of, outlooks

__all__ = [
    "Every",
    "Load",
    "Outlook",
    "Schedule",
    "load_of",
    "loads_of",
    "outlook_of",
    "outlooks",
    "runs_left",
]
