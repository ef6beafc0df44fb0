"""What Prefect's own telemetry tells of steps and budgets: names and numbers, no data.

Attributes on the span of the task run, where Prefect records one; and gauges on
Prefect's client metrics endpoint, where that is on. Both decide nothing: what fails
here is logged.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

from prefect.settings import PREFECT_CLIENT_METRICS_ENABLED

from dpflow.guard.request import Notice
from dpflow.interrupts import without_interrupts

if TYPE_CHECKING:
    from prometheus_client import Metric

logger = logging.getLogger("dpflow")

_DECISIONS = ("reserved", "replayed", "refused", "exhausted")


def describe_span(notice: Notice) -> None:
    """Say on the span of the task run what was decided of its step."""
    if notice.kind not in _DECISIONS:
        return
    from opentelemetry import trace  # noqa: PLC0415 (half of all that is loaded here)

    request = notice.request
    attributes = {
        "dpflow.dataset": list(request.datasets),
        "dpflow.step": request.step,
        "dpflow.decision": notice.kind,
        "dpflow.asked": repr(request.cost),
    }
    if notice.details.get("gate"):
        attributes["dpflow.gate"] = str(notice.details["gate"])
    trace.get_current_span().set_attributes(attributes)


def show_gauges() -> None:
    """Add the gauges of this process's project to Prefect's endpoint, if that is on."""
    if PREFECT_CLIENT_METRICS_ENABLED.value():
        _register()


@cache
def _register() -> None:
    from prometheus_client import REGISTRY  # noqa: PLC0415

    REGISTRY.register(_Gauges())


class _Gauges:
    """The gauges of `dpflow status`, read when somebody asks for them."""

    def describe(self) -> list[Metric]:
        """Return nothing: registering asks no ledger."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield every gauge; none where the ledger cannot be read now."""
        from prometheus_client.core import GaugeMetricFamily  # noqa: PLC0415

        from dpflow.show.gauges import gauges  # noqa: PLC0415
        from dpflow.show.status import status  # noqa: PLC0415

        try:
            result = status(tell=logger.warning)
        except without_interrupts(Exception) as error:
            logger.warning("no gauges: %s: %s", type(error).__name__, error)
            return
        for name, text, values in gauges(result):
            names = list(values[0][0]) if values else []
            metric = GaugeMetricFamily(name, text, labels=names)
            for labels, value in values:
                metric.add_metric(list(labels.values()), value)
            yield metric
