"""`cell=`: a step's own mechanism is charged by the cell of its output."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpflow import OutputDP, SparseVector, guarded, spend
from dpflow.exceptions import (
    ConfigurationError,
    UnsupportedCost,
)
from dpflow.mechanisms import sparse_vector
from tests.projects import POLICY, TENTH, account, journal, make_project

pytestmark = pytest.mark.quick

COST = OutputDP({"none": "0.1", "answer": "0.5"})


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a project whose dataset has epsilon 1 by cells."""
    return make_project(tmp_path, monkeypatch, POLICY.replace("basic", "output-dp"))


def spent() -> str:
    """Return the epsilon that is settled; nothing may stay held."""
    view = account()
    assert set(view.reserved.values()) == {"0"}
    return view.spent["epsilon"]


def ask(output: object, cell: object, cost: object = COST) -> object:
    """Run a step that returns an output, under a cell function."""

    @guarded(dataset="shop", cost=cost, cell=cell)
    def step() -> object:
        return output

    return step()


@pytest.mark.parametrize(("output", "epsilon"), [(None, "0.1"), (7, "0.5")])
def test_the_cell_of_the_output_is_charged(
    shop: Path, output: object, epsilon: str
) -> None:
    """It is read off what the body returned, and journaled."""
    assert ask(output, lambda o: "none" if o is None else "answer") == output
    assert spent() == epsilon
    assert journal()[-1].body["reported"] == ("none" if output is None else "answer")


def raising(output: object) -> str:
    """Fail with a text that holds the output."""
    msg = f"secret {output}"
    raise ValueError(msg)


@pytest.mark.parametrize(
    "cell", [lambda _: "other", lambda _: None, lambda _: True, raising]
)
def test_without_a_known_cell_the_step_is_charged_in_full(
    shop: Path, cell: object
) -> None:
    """Whoever runs it is warned, without the output; the output is kept."""
    with pytest.warns(RuntimeWarning, match="charged in full") as told:
        assert ask(4711, cell) == 4711
    assert spent() == "0.5"
    assert "4711" not in "".join(str(each.message) for each in told)


def test_two_answers_that_differ_are_none(shop: Path) -> None:
    """What the body reported and what the cell function says must agree."""

    def run(cell: str) -> None:
        @guarded(dataset="shop", cost=COST, cell=lambda _: cell)
        def step() -> int:
            from dpflow.guard.charge import current_execution

            current_execution("a test").report("none")
            return 1

        step()

    run("none")
    assert spent() == "0.1"
    with pytest.warns(RuntimeWarning, match="contradicts"):
        run("answer")
    assert spent() == "0.6"


def test_a_cell_needs_a_cost_with_cells(shop: Path) -> None:
    """When the step is defined, or, for a cost function, by a full charge."""
    with pytest.raises(ConfigurationError, match="has no cells"):
        ask(1, lambda _: "none", cost=TENTH)
    with pytest.raises(ConfigurationError, match="function of its output"):
        ask(1, "none")

    async def later(_: object) -> str:
        return "none"

    with pytest.raises(ConfigurationError, match="function of its output"):
        ask(1, later)
    with pytest.warns(RuntimeWarning, match="contradicts its cost"):
        ask(1, lambda _: "none", cost=lambda: TENTH)
    assert spent() == "0.1"


# ---- sparse_vector() in a body

SPARSE = SparseVector(positives=5, epsilon_threshold="0.1", epsilon_answers="0.5")
FAR = 10**9


@pytest.mark.parametrize(("positives", "epsilon"), [(0, "0.1"), (2, "0.3"), (5, "0.6")])
def test_sparse_vector_is_charged_by_its_positives(
    shop: Path, positives: int, epsilon: str
) -> None:
    """Queries far from the threshold are answered as they are."""

    @guarded(dataset="shop", cost=SPARSE)
    def above() -> list[bool]:
        return list(sparse_vector([FAR] * positives + [-FAR]))

    assert above() == [True] * positives + [False] * (positives < 5)
    assert spent() == epsilon
    assert journal()[-1].body["noise"] == "opendp"


def test_monotone_queries_need_add_or_remove(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replaced person may move one query up and another one down.

    The step is refused before it starts, so that nothing is charged.
    """
    policy = POLICY.replace("basic", "output-dp").replace(
        "add-or-remove", "replace-one"
    )
    make_project(tmp_path, monkeypatch, policy)
    cost = SparseVector(positives=1, epsilon="0.1", monotone=True)
    with (
        pytest.raises(UnsupportedCost, match="priced for add-or-remove"),
        spend(dataset="shop", cost=cost, step="ask"),
    ):
        pytest.fail("the body started")
    with spend(dataset="shop", cost=SPARSE, step="ask"):
        assert sparse_vector([FAR]) == (True,)
