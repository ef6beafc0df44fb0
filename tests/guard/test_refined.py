"""Asking for an error: coarse noise first, and no finer noise than the target needs."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest

from dpflow import (
    Estimate,
    Gaussian,
    Laplace,
    Refined,
    RefinedLaplace,
    guarded,
    release,
)
from dpflow.accounting import make_filter
from dpflow.accounting.costs.base import Cost
from dpflow.exceptions import DPStepFailed, InvalidCost, ReleaseError
from dpflow.guard.project import current_project
from tests.projects import POLICY, caught, journal, make_project, spent
from tests.test_testing import CHILD_POLICY  # noqa: F401
