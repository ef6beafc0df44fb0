"""A release belongs to its function, whatever decorates it and wherever it is run."""

from __future__ import annotations

import functools
import gc
import re
import runpy
import sys
import types
from functools import partial
from multiprocessing import spawn

import pytest
from prefect.utilities.importtools import load_script_as_module
from pydantic import validate_call

from dpflow import guarded, release
from dpflow.config import LEDGER_VARIABLE, POLICIES_VARIABLE
from dpflow.exceptions import ConfigurationError, ReservationConflict
from dpflow.guard import request as asking
from dpflow.guard.project import forget_projects
from tests.ledger.processes import Child
from tests.projects import NOISY, ledger_file, spent

pytestmark = pytest.mark.quick


def step(function, **declared):
    """Return a step under one name and key."""
    declared = {"release_key": "k/{day}", "name": "count", **declared}
    return guarded(dataset="shop", cost=NOISY, **declared)(function)


def few(day):
    """Release a small number."""
    return release(1000)


def many(day):
    """Release a large number."""
    return release(90_000)


def bare(function):
    """Decorate without `functools.wraps`."""

    def wrapper(day):
        return function(day)

    return wrapper


def times(factor):
    """Decorate with an argument."""

    def decorate(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            return function(*args, **kwargs) * factor

        return wrapper

    return decorate


class Hiding:
    """A decorator that is a class, and does not say what it decorates."""

    def __init__(self, function):
        self.function = function
        self.__name__ = "hiding"

    def __call__(self, day):
        """Call the function."""
        return self.function(day)


class Logged(Hiding):
    """A decorator that is a class."""

    def __init__(self, function):
        super().__init__(function)
        functools.update_wrapper(self, function)


def retried(function):
    """Decorate as libraries of retries do: with an object and attributes."""
    state = types.SimpleNamespace(attempts=3)

    @functools.wraps(function)
    def wrapped(*args, **kwargs):
        state.attempts -= 1
        return function(*args, **kwargs)

    wrapped.retry = state
    return wrapped


def of_kind(kind):
    """Return one of two functions of one name."""
    if kind == "few":

        def count(day):
            return release(1000)

    else:

        def count(day):
            return release(90_000)

    return count


class Shop:
    """A shop of which a number is released."""

    size = 1000

    @guarded(dataset="shop", cost=NOISY, release_key="k/{day}", ignore=("self",))
    def count(self, day):
        """Release a number that a subclass may override."""
        return release(self.size * len(day))

    @times(2)
    def doubled(self, day):
        """Be an ordinary method, behind a decorator."""
        return release(self.size * len(day))


class Chain(Shop):
    """Another kind of shop."""

    size = 90_000


SELF, FUNCTION = {"ignore": ("self",)}, {"ignore": ("function",)}
PAIRS = {
    "functions": lambda: (step(few), step(many)),
    "lambdas": lambda: [
        step(lambda day: release(len(day))),
        step(lambda day: release(len(day) + 90_000)),
    ],
    "wrappers": lambda: (step(bare(few)), step(bare(many))),
    "wrappers of local functions": lambda: [
        step(bare(of_kind(kind)), **FUNCTION) for kind in ("few", "many")
    ],
    "objects": lambda: (step(Hiding(few), **SELF), step(Hiding(many), **SELF)),
    "factory": lambda: (step(of_kind("few")), step(of_kind("many"))),
    "decorators": lambda: (step(times(1)(few)), step(times(90)(few))),
    "partial": lambda: (step(partial(few)), step(partial(times(2)(few)))),
    "classes": lambda: (Shop().count, Chain().count),
}


@pytest.mark.parametrize("kind", PAIRS)
def test_another_function_is_never_answered_with_this_ones_release(shop, kind):
    """An error names both and `moved_from=`, again at a second try; no charge."""
    one, other = PAIRS[kind]()
    first = one("mon")
    for _ in range(2):
        with pytest.raises(ReservationConflict, match="moved_from=") as error:
            other("mon")
    assert one("mon") == first
    assert spent() == "0.1"
    if kind == "functions":
        assert re.search("'few', and not 'many'", error.value.message)


def test_functions_of_two_keys_and_equal_results_of_a_factory_are_no_conflict(shop):
    """Nor is a function that drew nothing yet."""
    for key in ("a", "b"):
        step(lambda day: release(len(day)), release_key=f"{key}/{{day}}")("mon")
    one, other = step(of_kind("few")), step(of_kind("few"))
    assert one("mon") == other("mon")


@pytest.mark.parametrize("again", ["cell", "kept"])
def test_a_later_definition_replaces_the_earlier_one(shop, monkeypatch, again):
    """An edited cell goes on with the release, unless the earlier one has a name."""
    cell = types.ModuleType("cell")
    monkeypatch.setitem(sys.modules, "cell", cell)
    vars(cell).update(step=step, release=release)
    exec("@step\ndef count(day): return release(1000)", vars(cell))
    first = cell.count("mon")
    if again == "kept":
        cell.earlier = cell.count
    exec("@step\ndef count(day): return release(90_000)", vars(cell))
    if again == "cell":
        assert cell.count("mon") == first
    else:
        with pytest.raises(ReservationConflict, match="moved_from"):
            cell.count("mon")


def test_a_lambda_that_nothing_holds_is_replaced(shop):
    """The edited cell of a notebook that defines a step by a lambda."""
    count = step(lambda day: release(len(day)))
    first = count("mon")
    count = None
    gc.collect()
    count = step(lambda day: release(len(day) + 90_000))
    assert count("mon") == first


REPORT = """
from dpflow import PureDP, guarded
import random

@guarded(dataset="shop", cost=PureDP(epsilon="0.1"), release_key="k/{day}")
def count(day):
    return random.random()

class Shop:
    @guarded(dataset="shop", cost=PureDP(epsilon="0.1"), release_key="s/{self.n}")
    def count(self):
        return random.random()
    n = 1

def both():
    return [count("mon"), Shop().count()]
"""


def load_by_prefect():
    """Load a file as Prefect does for a served or deployed flow."""
    return vars(load_script_as_module("jobs/report.py"))


def test_a_file_has_one_name_in_each_program_and_clone(shop, monkeypatch, tmp_path):
    """A script, `-m`, Prefect's loader twice, a spawned process, and another clone."""
    clone = tmp_path / "clone"
    for folder in (shop, clone):
        (folder / "jobs").mkdir(parents=True)
        (folder / "jobs" / "report.py").write_text(REPORT, "utf-8")
        (folder / "pyproject.toml").touch()
    script = str(shop / "jobs" / "report.py")
    first = runpy.run_path(script, run_name="__main__")["both"]()

    def run_spawned(say):
        # As a spawned process begins.
        spawn._fixup_main_from_path(script)
        say(sys.modules["__main__"].both())

    assert Child(run_spawned).end() == (0, [str(first)])
    monkeypatch.syspath_prepend(shop)
    assert runpy.run_module("jobs.report", run_name="__main__")["both"]() == first
    for _ in range(2):
        assert load_by_prefect()["both"]() == first
    monkeypatch.setenv(LEDGER_VARIABLE, f"sqlite:///{ledger_file(shop)}")
    monkeypatch.setenv(POLICIES_VARIABLE, str(shop / "policies"))
    monkeypatch.chdir(clone)
    forget_projects()
    assert load_by_prefect()["both"]() == first
    moved_file = clone / "jobs" / "moved.py"
    (clone / "jobs" / "report.py").rename(moved_file)
    moved = runpy.run_path(str(moved_file))
    for call in (lambda: moved["count"]("mon"), lambda: moved["Shop"]().count()):
        with pytest.raises(ReservationConflict, match=r"moved\.py.*moved_from="):
            call()
    text = REPORT.replace("Shop", "Store")
    for key, name in (("k", "count"), ("s", "Shop.count")):
        old = f'moved_from="jobs/report.py:{name}", release_key="{key}/'
        text = text.replace(f'release_key="{key}/', old)
    moved_file.write_text(text, "utf-8")
    assert runpy.run_path(str(moved_file))["both"]() == first
    assert spent() == "0.2"


def test_a_renamed_function_finds_its_releases_under_the_old_name(shop):
    """`moved_from=` covers the step's name, and the first draw of a new key."""

    def count(day):
        return release(1000)

    def visits(day):
        return release(90_000)

    old = count.__qualname__
    first = step(count, name=None)("mon")
    renamed = step(visits, name=None, moved_from=("elsewhere.py:f", old))
    assert renamed("mon") == first
    second = renamed("tue")
    assert second == step(visits, name=None)("tue") != first
    assert step(visits, name=None, moved_from=old, fresh=True)("mon") != first
    for wrong in (5, ("",), [old, old]):
        with pytest.raises(ConfigurationError, match="takes moved_from= as former"):
            step(visits, moved_from=wrong)


def test_a_release_from_before_names_no_function_and_replays(shop, monkeypatch):
    """Whatever function asks for it now."""

    def without(*args, arguments, **fields):
        del arguments[""]
        return made(*args, arguments=arguments, **fields)

    made = asking.Request
    monkeypatch.setattr(asking, "Request", without)
    first = step(few)("mon")
    monkeypatch.setattr(asking, "Request", made)
    assert step(few)("mon") == first


DECORATORS = {
    "lru_cache": functools.lru_cache,
    "retries": retried,
    "class": Logged,
    "validate_call": validate_call,
    "arguments": times(2),
    "two": lambda function: Logged(times(2)(function)),
    "partial": partial,
    "method": lambda _: Shop().doubled,
}


@pytest.mark.parametrize("kind", DECORATORS)
@pytest.mark.parametrize("local", [False, True])
def test_a_step_is_found_behind_its_decorators(shop, kind, local):
    """The key reads what the function captures, and nothing of its decorators."""
    region = "EU"

    def inner(day: str):
        return release(1000 if region else 0)

    function = DECORATORS[kind](inner if local else few)
    fields = {"method": "{self.size}/"}.get(kind, "{region}/" if local else "")
    count = step(function, release_key=f"{fields}{{day}}")
    assert count("mon") == count("mon")
    assert spent() == "0.1"
    if local and kind != "method":
        with pytest.raises(ConfigurationError, match="reads nothing of 'region'"):
            step(function)


@pytest.mark.parametrize("hide", [bare, Hiding])
def test_a_refusal_names_the_decorator_that_hides_the_function(hide):
    """What it captures is no argument, so that the way out is the order."""

    def inner(day):
        return release(1000)

    with pytest.raises(ConfigurationError, match="put @guarded below it") as error:
        step(hide(inner))
    name = "bare.<locals>.wrapper" if hide is bare else "Hiding"
    assert f"The decorator of {name!r}" in error.value.message
    assert "ignore=(" in error.value.message
