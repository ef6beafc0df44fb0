"""What the author of a step declares, checked when it is defined."""

from __future__ import annotations

import functools
import inspect
import string
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpflow import Laplace, PureDP
from dpflow.exceptions import ConfigurationError, InvalidCost
from dpflow.guard.step import check_template, define_step
from tests.projects import NOISY, TENTH

pytestmark = pytest.mark.quick


def body(frame, week, *, city="Bonn"):
    """Stand for a step's body."""


def step(function=body, **declared):
    """Define a step, on one dataset and at a tenth unless told otherwise."""
    if "release_key" in declared:
        names = {*inspect.signature(function).parameters}
        declared["ignore"] = tuple(names - {*declared.get("private", ())})
    return define_step(function, **{"dataset": "shop", "cost": TENTH, **declared})


def refused(function=body, **declared):
    """Return the message of a definition that cannot work."""
    with pytest.raises(ConfigurationError) as error:
        step(function, **declared)
    return error.value.message


# Names


def test_a_step_is_called_after_its_function_unless_it_says_otherwise():
    """The name is what the journal shows."""
    assert step().name == "body"
    assert step(name="count").name == "count"


@pytest.mark.parametrize("name", ["", 5, b"count", ["count"]])
def test_a_name_is_text(name):
    """An empty name does not fall back to the function's."""
    assert f"name= takes a text that is not empty, got {name!r}" == refused(name=name)


def test_a_function_without_a_name_needs_one():
    """A partial has none of its own."""
    partial = functools.partial(body, 1)
    assert "a partial has no name of its own" in refused(partial)
    assert 'say name="..."' in refused(partial)
    assert step(partial, name="count").name == "count"


@pytest.mark.parametrize("function", [None, 5, "body"])
def test_a_step_is_made_of_a_function(function):
    """The error shows what was decorated."""
    assert f"made of a function, got {function!r}" in refused(function)


def test_a_step_knows_where_its_body_was_written():
    """The same in the main program and in the workers that it spawns."""
    assert step().source == f"{__name__}.body"
    elsewhere = types.FunctionType(body.__code__, {"__name__": "__mp_main__"})
    assert step(elsewhere).source == "__main__.body"


def a_generator():
    """Yield."""
    yield 1


async def an_async_generator():
    """Yield."""
    yield 1


@pytest.mark.parametrize("function", [a_generator, an_async_generator])
def test_generators_are_refused(function):
    """An abandoned one would be recorded as completed."""
    message = refused(function)
    assert f"step {function.__name__!r} is a generator" in message
    assert "Return the whole output" in message


# Datasets


def test_one_dataset_or_several():
    """A name, a tuple or a list."""
    assert step(dataset="shop").datasets == ("shop",)
    assert step(dataset=("shop", "site")).datasets == ("shop", "site")
    assert step(dataset=["shop"]).datasets == ("shop",)


@pytest.mark.parametrize(
    "dataset", ["", (), [], ("shop", ""), ("shop", 5), 5, None, {"shop": 1}]
)
def test_a_dataset_is_a_name(dataset):
    """Anything else is refused and shown."""
    message = refused(dataset=dataset)
    assert f"needs dataset=: the name of a dataset, got {dataset!r}" in message


def test_a_dataset_is_named_once():
    """Charging one account twice for one step would be a mistake."""
    assert "names a dataset twice" in refused(dataset=("shop", "shop"))


# Arguments


def test_bind_returns_the_public_arguments_by_name():
    """Defaults are included, private arguments and instances are not."""
    declared = step(private=("frame",), data_version="1")
    assert declared.bind(("x", 1), {}) == {"week": 1, "city": "Bonn"}
    assert declared.bind((), {"frame": "x", "week": 1, "city": "Ulm"}) == {
        "week": 1,
        "city": "Ulm",
    }


def test_the_instance_of_a_method_is_no_public_argument():
    """Nor may a cost or a name of a task run read it."""

    def method(self, week):
        """Stand for a method."""

    declared = step(method)
    assert declared.public(declared.bind((object(), 1), {})) == {"week": 1}
    with pytest.raises(ConfigurationError, match="speaks of 'self"):
        check_template(declared, "task_run_name", "{self.city}")


def test_private_names_a_parameter():
    """A misspelt name would leave the data public."""
    message = refused(private=("frme",))
    assert "no parameter 'frme' to be private" in message
    assert "frame, week, city" in message
    assert step(private="frame").private == {"frame"}


@pytest.mark.parametrize("version", ["", 2, 1.5, float("nan"), True])
def test_a_version_is_text(version):
    """An empty one does not silently mean the policy's."""
    assert "data_version= takes a text" in refused(data_version=version)


# Costs


@pytest.mark.parametrize("cost", [None, 0.1, "Laplace"])
def test_a_step_needs_a_cost(cost):
    """The error shows an example."""
    assert "needs cost=: a cost such as Gaussian(sensitivity=1" in refused(cost=cost)


def test_a_cost_may_depend_on_public_arguments():
    """The function gets those that it names, by name."""
    declared = step(cost=lambda week: PureDP(epsilon=week), private=("frame",))
    assert declared.price({"week": 3, "city": "Bonn"}) == PureDP(epsilon=3)
    assert step(cost=TENTH).price({}) == TENTH


def test_a_cost_function_may_take_everything():
    """With two stars it gets every public argument."""
    seen = []
    declared = step(cost=lambda **public: seen.append(public) or TENTH)
    declared.price({"week": 3})
    assert seen == [{"week": 3}]


def test_a_cost_function_keeps_its_own_defaults():
    """A parameter that is no public argument keeps its default."""
    declared = step(cost=lambda week, scale=10: Laplace(sensitivity=week, scale=scale))
    assert declared.price({"week": 1}) == NOISY


@pytest.mark.parametrize(
    ("cost", "told"),
    [
        (lambda missing: missing, "raised TypeError"),
        (lambda: 1 / 0, "raised ZeroDivisionError: division by zero"),
        (lambda: Laplace(sensitivity=float("nan"), scale=1), "InvalidCost"),
        (lambda: None, "returned None"),
        (lambda: 0.1, "returned 0.1"),
        (lambda: PureDP, "returned <class"),
    ],
)
def test_a_cost_function_that_fails_is_told(cost, told):
    """The error names the step and says that it did not run."""
    with pytest.raises(ConfigurationError) as error:
        step(cost=cost).price({})
    assert told in error.value.message
    assert "cost function of step 'body'" in error.value.message
    assert "The step did not run." in error.value.message


def test_a_bad_number_in_a_cost_is_refused_before_the_step_exists():
    """The cost itself is checked when it is written."""
    with pytest.raises(InvalidCost, match="sensitivity must be a finite number"):
        step(cost=Laplace(sensitivity="many", scale=1))


# Release keys


@pytest.mark.parametrize(
    ("template", "key"),
    [
        ("revenue", "revenue"),
        ("revenue/{week}", "revenue/7"),
        ("{city}/{week:03d}", "Bonn/007"),
        ("{week!r}-{{week}}", "7-{week}"),
        ("{week:0{width}d}", "07"),
    ],
)
def test_a_release_key_is_a_template_over_public_parameters(template, key):
    """Formats and nested fields work as in Python."""

    def count(week, city="Bonn", width=2):
        """Stand for a body."""

    declared = step(count, release_key=template)
    assert declared.key(declared.bind((7,), {})) == key


def test_without_a_template_there_is_no_key():
    """The default key is made elsewhere."""
    assert step().key({"week": 1}) is None


@pytest.mark.parametrize(
    ("template", "told"),
    [
        ("{frame}", "speaks of 'frame'"),
        ("{frame.shape}", "speaks of 'frame.shape'"),
        ("{frame[0]}", "speaks of 'frame[0]'"),
        ("{week:{frame}}", "speaks of 'frame'"),
        ("{year}", "speaks of 'year'"),
        ("{}", "speaks of ''"),
        ("{0}", "speaks of '0'"),
        ("{week", "release_key '{week'"),
        ("week}", "release_key 'week}'"),
        ("", "release_key= takes a text"),
        (5, "release_key= takes a text"),
    ],
)
def test_a_template_that_cannot_work_is_refused_when_defined(template, told):
    """It may never speak of private data, however deeply."""
    assert told in refused(release_key=template, private=("frame",))


@pytest.mark.parametrize(
    ("template", "told"),
    [
        ("{week.year}", "AttributeError"),
        ("{week[0]}", "TypeError"),
        ("{week:%}", "ValueError"),
    ],
)
def test_a_template_that_does_not_fit_an_argument_is_told(template, told):
    """The step does not run under a key that nobody can make."""
    declared = step(release_key=template)
    with pytest.raises(ConfigurationError) as error:
        declared.key({"week": "7" if told == "ValueError" else 7})
    assert told in error.value.message
    assert template in error.value.message
    assert "did not run" in error.value.message.replace("\n", " ")


@given(st.text(alphabet=string.printable, max_size=20))
def test_no_template_ever_reaches_private_data(template):
    """Whatever is written, a key is refused or made of public arguments."""
    try:
        declared = step(release_key=template, private=("frame",))
        key = declared.key({"week": "w", "city": "c"})
    except ConfigurationError:
        return
    assert isinstance(key, str)
