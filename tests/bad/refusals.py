"""Steps that must be refused, with nothing moved."""

from __future__ import annotations

import pytest

from dpflow import guarded
from tests.projects import caught, rows


def refusal(folder, step, kind):
    """Return the error of a step that must neither run nor move the ledger."""
    before = rows(folder)
    error = caught(step)
    assert type(error) is kind, repr(error)
    assert before == rows(folder)
    return error


def must_not_run(*arguments):
    """Stand for a body that reads private data."""
    pytest.fail("the body ran")


def step_at(cost, **declared):
    """Return a step of this cost whose body must not run."""
    return guarded(dataset="shop", cost=cost, name="bad", **declared)(must_not_run)
