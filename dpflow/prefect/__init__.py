"""dpflow in Prefect: tasks, flows, states and artifacts. Only here it is imported."""

from __future__ import annotations

from dpflow.prefect.blocks import DpflowLedger
from dpflow.prefect.flow import dp_flow
from dpflow.prefect.loader import PrivateTask, private_task
from dpflow.prefect.task import DPTask, dp_task

__all__ = [
    "DPTask",
    "DpflowLedger",
    "PrivateTask",
    "dp_flow",
    "dp_task",
    "private_task",
]
