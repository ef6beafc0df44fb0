"""The public names: complete, sorted, lazily loaded and documented."""

from __future__ import annotations

import ast

import pytest

import dpflow
from tests.projects import ROOT, run_python

#: A package that is called like the function of its name (tests/show/test_records.py).
CALLED = {"forecast"}
LAZY = sorted(set(dpflow.__all__) - {"__version__"} - CALLED)


def order(name):
    """Return the place of a name: constants, then classes, then functions."""
    if name.isupper():
        return (0, name)
    return (1, name) if name[0].isupper() else (2, name)


def typed_names():
    """Return the names that type checkers are told of."""
    tree = ast.parse((ROOT / "dpflow" / "__init__.py").read_text("utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    return {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_all_is_sorted_and_names_each_once():
    """Constants, classes, functions; each kind by the alphabet."""
    assert sorted(dpflow.__all__, key=order) == dpflow.__all__
    assert len(set(dpflow.__all__)) == len(dpflow.__all__)


def test_all_places_and_types_agree():
    """What is exported, loaded and told to type checkers is one list."""
    assert sorted(dpflow._PLACES) == LAZY
    package = {name: f"dpflow.{name}.what_if" for name in CALLED}
    assert typed_names() == dpflow._PLACES | package


def test_dir_shows_the_public_names():
    """And nothing else, before and after they are loaded."""
    assert sorted(dpflow.__all__) == dir(dpflow)
    assert dpflow.Gaussian is dpflow.Gaussian
    assert sorted(dpflow.__all__) == dir(dpflow)


@pytest.mark.parametrize("name", ["gaussian", "ledger_url", "_Gaussian", "Plan"])
def test_an_unknown_name_is_an_attribute_error(name):
    """As for any module."""
    with pytest.raises(AttributeError, match=f"no attribute '{name}'"):
        getattr(dpflow, name)


def test_the_names_of_the_design_are_there():
    """The examples of the design import these."""
    wanted = {
        "Gaussian",
        "Laplace",
        "dp_flow",
        "dp_task",
        "release",
        "guarded",
        "spend",
    }
    errors = {"BudgetExhausted", "BudgetRefused", "DPStepFailed", "DpflowError"}
    assert wanted | errors <= set(dpflow.__all__)


# Three of the names load Prefect, which other tests should not find loaded.
NAMES = """
import json, sys
import dpflow
for name in dpflow.__all__:
    if "prefect" not in dpflow._PLACES.get(name, ""):
        getattr(dpflow, name)
early = sorted({"prefect", "numpy", "pandas", "opendp"} & set(sys.modules))
space = {}
exec("from dpflow import *", space)
found = {}
for name in dpflow.__all__:
    value = space[name]
    assert value is getattr(dpflow, name)
    found[name] = [getattr(value, "__module__", ""), getattr(value, "__name__", ""),
                   getattr(value, "__doc__", "") or ""]
print(json.dumps([early, found]))
"""


@pytest.fixture(scope="module")
def loaded():
    """Return what a fresh Python finds under the public names."""
    return run_python(NAMES)


def test_only_prefects_names_load_prefect(loaded):
    """Costs, errors, policies and the guard load no heavy library."""
    early, _ = loaded
    assert early == []


@pytest.mark.parametrize("name", LAZY)
def test_every_name_is_resolved_and_documented(loaded, name):
    """It is what it is called, lives where it is said to, and has a sentence."""
    module, called, text = loaded[1][name]
    assert called == name
    assert module == dpflow._PLACES[name] or module.startswith("dpflow.policy")
    sentence = text.strip().split("\n\n")[0]
    assert sentence.endswith(".")
    assert len(sentence) > 15


def test_the_version_is_one(loaded):
    """Three numbers."""
    assert [part.isdigit() for part in dpflow.__version__.split(".")] == [True] * 3
