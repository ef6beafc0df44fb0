"""Steps whose release could not be served again are refused before they are charged."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Literal
from uuid import UUID

import numpy as np
import pandas as pd
import polars as pl
import pytest

from dpflow import guarded
from dpflow.exceptions import ConfigurationError
from dpflow.interop import releasable
from dpflow.ledger.codec import encode
from dpflow.ledger.codec.kinds import unstorable_type
from tests.projects import POLICY, TENTH, make_project, rows


class Plain:
    """A class that nobody declared."""


@releasable
@dataclass(frozen=True)
class Summary:
    """A declared class."""

    customers: int


class Colour(Enum):
    """An enum that nobody declared."""

    RED = 1


@pytest.fixture
def optional(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a project whose policy says nothing of it."""
    return make_project(tmp_path, monkeypatch, POLICY)


KEPT = [
    (float, 1.5), (int | None, None), (list[Decimal], [Decimal("0.1")]),
    (dict[str, tuple[int, ...]], {"a": (1, 2)}), (np.ndarray, np.ones(2)),
    (pd.DataFrame, pd.DataFrame({"a": [1]})), (pl.Series, pl.Series([1])),
    (Summary, Summary(3)), (UUID, UUID(int=7)),
    (Literal["a", 1], "a"), (np.float64, np.float64(2)),
]  # fmt: skip


def test_annotations_say_what_can_be_stored() -> None:
    """Each value of these annotations can; bad types are named within containers."""
    for annotation, value in KEPT:
        assert unstorable_type(annotation) is None
        assert encode(value)
    for annotation in (Plain, list[Plain], dict[str, tuple[Plain, ...]]):
        assert unstorable_type(annotation) is Plain
    assert unstorable_type(Colour) is Colour
    assert unstorable_type(complex | None) is complex


def test_a_keyed_step_that_returns_what_cannot_be_stored_is_not_charged(optional):
    """The error names the type and what can be stored; without a key it runs."""
    ran = []

    @guarded(dataset="shop", cost=TENTH, release_key="table", ignore=("ran",))
    def table() -> list[Plain]:
        ran.append(1)
        return [Plain()]

    before = rows(optional)
    with pytest.raises(ConfigurationError, match=r"Plain, which cannot be stored") as e:
        table()
    assert "nothing was charged" in e.value.message
    assert rows(optional) == before
    assert not ran

    @guarded(dataset="shop", cost=TENTH)
    def unkeyed() -> Plain:
        return Plain()

    assert isinstance(unkeyed(), Plain)
