"""`cell=`: a step's own mechanism is charged by the cell of its output."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpflow import OutputDP, guarded
from dpflow.exceptions import ConfigurationError
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
def test_the_cell_of_the_output_is_charged(shop, output, epsilon):
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
def test_without_a_known_cell_the_step_is_charged_in_full(shop, cell):
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
    with pytest.raises(ConfigurationError, match="a cost with cells"):
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
