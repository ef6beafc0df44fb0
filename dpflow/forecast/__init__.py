"""What the budget is still good for: runs left, and until when.

Pure functions of gates, tallies and workloads; only `outlooks` reads a ledger, and
nothing here writes one.
"""

from __future__ import annotations

from dpflow.forecast.cadence import Every, Schedule
from dpflow.forecast.gates import loads_of
from dpflow.forecast.line import BudgetLine, budget_line
from dpflow.forecast.loads import Load, load_of, runs_left
from dpflow.forecast.outlook import Outlook, flow_outlooks, outlook_of, outlooks

__all__ = [
    "BudgetLine",
    "Every",
    "Load",
    "Outlook",
    "Schedule",
    "budget_line",
    "flow_outlooks",
    "load_of",
    "loads_of",
    "outlook_of",
    "outlooks",
    "runs_left",
]
