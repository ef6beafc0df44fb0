"""Forecasts: how many runs remain, until when, and which policy would be better.

`forecast` and `check_policies` are what the commands of these names show, one record
each; they find dataset, policy and budget in one place (`source`). All else here is
pure functions of gates, tallies and workloads; `outlooks` reads a ledger. Nothing
writes one.

The package is called like its function: `dpflow.forecast("orders", like="weekly")`.
"""

from __future__ import annotations

import sys
from inspect import Signature, signature
from types import ModuleType
from typing import Any

from dpflow.forecast.cadence import Every
from dpflow.forecast.check import check_policies
from dpflow.forecast.outlook import (
    BudgetLine,
    Outlook,
    budget_line,
    flow_outlooks,
    outlooks,
)
from dpflow.forecast.what_if import Forecast, forecast

__all__ = [
    "BudgetLine",
    "Every",
    "Forecast",
    "Outlook",
    "budget_line",
    "check_policies",
    "flow_outlooks",
    "forecast",
    "outlooks",
]


class _Called(ModuleType):
    """What `dpflow.forecast` is: this package, and a call of its function."""

    def __call__(self, *args: Any, **kwargs: Any) -> Forecast:
        """Return a forecast; see `forecast`."""
        return forecast(*args, **kwargs)

    @property
    def __signature__(self) -> Signature:
        """The function's signature, for help and editors."""
        return signature(forecast)


sys.modules[__name__].__class__ = _Called
