"""A project whose dataset has a theorem and a delta."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.projects import POLICY, make_project


def make_shop(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    theorem: str,
    *,
    epsilon: str = "60",
    delta: str = "1e-6",
    relation: str = "replace-one",
) -> Path:
    """Make a project of one dataset."""
    policy = POLICY.replace("basic", theorem).replace("add-or-remove", relation)
    budget = f"{{epsilon: {epsilon}, delta: {delta}}}"
    return make_project(folder, monkeypatch, policy.replace("{epsilon: 1}", budget))


def fixture_policy(
    theorem: str = "basic", relation: str = "add-or-remove", delta: str = "0"
) -> str:
    """Return a policy for the ledger of a test."""
    return (
        f"dataset: orders\nunit: customer\nrelation: {relation}\n"
        f"budget: {{epsilon: 1, delta: {delta}}}\nerrors: keep\nfilter: {theorem}\n"
    )
