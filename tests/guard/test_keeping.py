"""Outputs that could not be replayed are refused before they are charged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

import pytest

from dpflow import guarded, releasable, spend
from dpflow.exceptions import ConfigurationError
from tests.projects import POLICY, TENTH, kinds, make_project


class Model:
    """Cannot be stored."""


class Base:
    """Cannot be stored itself, but one that inherits from it can."""


class Shaped(Protocol):
    """Says what a value can do, not which class it is of."""

    size: int


class Colour(Enum):
    """Was not declared to be storable."""

    RED = 1


@releasable
@dataclass(frozen=True)
class Summary(Base):
    """Can be stored."""

    customers: int


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """Return the folder of a project with one dataset."""
    return make_project(tmp_path, monkeypatch)


@pytest.fixture
def strict(tmp_path, monkeypatch):
    """Return the folder of a project whose policy wants every step to be replayed."""
    return make_project(tmp_path, monkeypatch, f"{POLICY}replay: required\n")


def step(returns: Any, value: Any = 7, **said: Any) -> Any:
    """Return a step with a return annotation."""

    def body(week: int) -> Any:
        return value

    body.__annotations__["return"] = returns
    said.setdefault("release_key", "body-{week}")
    return guarded(dataset="shop", cost=TENTH, **said)(body)


@pytest.mark.parametrize(
    ("returns", "told"),
    [
        (Model, "Model cannot be stored; return numbers"),
        (dict[str, list[Model]], "Model cannot be stored"),
        (Model | None, "Model cannot be stored"),
        ("Model", "Model cannot be stored"),
        (Colour, "put @releasable on its class"),
        (complex, "a pair of floats"),
    ],
)
def test_a_type_that_cannot_be_stored_is_refused_uncharged(shop, returns, told):
    """The body does not run; the error says what to return instead."""
    with pytest.raises(ConfigurationError, match=told):
        step(returns)(1)
    assert kinds() == []


@pytest.mark.parametrize(
    "returns",
    [
        *(int, float | None, Any, object, Base, Summary, Shaped, "NotKnown", None),
        *(list[tuple[int, ...]], Mapping[str, float], Sequence[Summary]),
    ],
)
def test_a_type_that_may_be_stored_runs(shop, returns):
    """Nothing is refused on a guess: an instance of a subclass may be storable."""
    assert step(returns)(1) == 7
    assert kinds() == ["reserve", "settle"]


def test_a_type_of_a_library_is_judged_by_its_values(shop):
    """Numpy, pandas and polars have more types than names that are stored."""
    numpy = pytest.importorskip("numpy")
    assert step(numpy.float64)(1) == 7


def test_without_a_key_nothing_is_promised_and_nothing_is_refused(shop):
    """A step that asks for no replay may return what it likes."""
    model = Model()
    assert step(Model, model, release_key=None)(1) is model


@pytest.mark.parametrize("said", [{"release_key": None}, {"fresh": True}])
def test_replay_required_refuses_what_would_be_drawn_again(strict, said):
    """No key, or a new draw at each call: neither could be replayed."""
    with pytest.raises(ConfigurationError, match="`replay: required`"):
        step(int, **said)(1)
    with (
        pytest.raises(ConfigurationError, match="`replay: required`"),
        spend(dataset="shop", cost=TENTH, step="block"),
    ):
        pytest.fail("the block ran")
    assert kinds() == []


def test_replay_required_lets_what_is_kept_run(strict):
    """With a key and a storable type it runs once and is replayed then."""
    assert [step(int)(1), step(int, 8)(1)] == [7, 7]
    assert kinds() == ["reserve", "settle"]
