"""What a preview reads of a source, which it never runs: costs, steps and draws."""

from __future__ import annotations

import pytest

from dpflow import Gaussian
from dpflow.contrib.preview.scan import scan

# What is read


HEAD = "import dpflow\nimport dpflow as d\nfrom dpflow import *\n"


def only(text):
    """Return the only step in a source."""
    (found,) = scan({"a.py": HEAD + text}).steps
    return found


@pytest.mark.parametrize(
    ("cost", "expected"),
    [
        ("Gaussian(sensitivity=1, sigma=20)", Gaussian(sensitivity=1, sigma=20)),
        ("dpflow.Gaussian(sensitivity=1, sigma=20)", Gaussian(sensitivity=1, sigma=20)),
        ("d.Gaussian(sensitivity=1, sigma=20)", Gaussian(sensitivity=1, sigma=20)),
        ("COST", Gaussian(sensitivity=1, sigma="0.1")),
        ("Repeated(COST, 3).part", None),
        ("lambda day: Gaussian(sensitivity=1, sigma=20)", None),
        ("Gaussian(sensitivity=1, sigma=sigma)", None),
        ("Gaussian(sensitivity=1, sigma=TWICE)", None),
        ("Gaussian(sensitivity=1, sigma=2 ** 4)", None),
        ("Gaussian(**options)", None),
        ("cost_of(20)", None),
        ("other.Gaussian(sensitivity=1, sigma=20)", None),
        ("Gaussian(sensitivity=1, sigma=20) if x else 1", None),
    ],
)
def test_costs_that_are_written_out_are_read(cost, expected):
    """Names that are bound once are followed; everything else is left to run time."""
    text = (
        "COST = Gaussian(sensitivity=1, sigma=0.1)\nTWICE = 1\nTWICE = 2\n"
        f"@guarded(dataset='a', cost={cost})\ndef f(sigma): pass\n"
    )
    found = only(text)
    assert found.cost == expected
    assert found.text


@pytest.mark.parametrize(
    "before",
    [
        "from mine import Gaussian\n",
        "def Gaussian(**k): return 1\n",
        "class Gaussian: pass\n",
        "Gaussian = other\n",
    ],
)
def test_a_cost_of_someone_else_is_not_read(before):
    """It is no cost of dpflow's, whatever it is called."""
    text = before + "@guarded(dataset='a', cost=Gaussian(sensitivity=1, sigma=20))\n"
    assert only(text + "def f(): pass\n").cost is None


def test_an_impossible_cost_is_a_problem():
    """It would fail when the file is imported."""
    found = only(
        "@guarded(dataset='a', cost=Laplace(sensitivity=1, epsilon=-1))\ndef f(): 1"
    )
    assert "epsilon" in found.problem


@pytest.mark.parametrize(
    ("text", "name", "datasets", "flows"),
    [
        ("@guarded(dataset='a', cost=C, flow='r')\ndef f(): 1", "f", ("a",), ("r",)),
        (
            "@dpflow.dp_task(dataset=('a', 'b'), cost=C)\ndef f(): 1",
            "f",
            ("a", "b"),
            (),
        ),
        ("@guarded(dataset=D, cost=C, name='g')\ndef f(): 1", "g", (), ()),
        ("D = 'a'\n@guarded(dataset=D, cost=C)\nasync def f(): 1", "f", ("a",), ()),
        ("with spend(dataset='a', cost=C, step='s'): 1", "s", ("a",), ()),
        ("g = guarded(dataset='a', cost=C)(f)", "f", ("a",), ()),
        (
            "from dpflow import guarded as g\n@g(dataset='a', cost=C)\ndef f(): 1",
            "f",
            ("a",),
            (),
        ),
        (
            (
                "@dp_task(dataset='a', cost=C)\ndef f(): 1\n"
                "@dp_flow\ndef my_report(): f.map([1])"
            ),
            "f",
            ("a",),
            ("my-report",),
        ),
        (
            (
                "from prefect import flow\n@dp_task(dataset='a', cost=C)\ndef f(): 1\n"
                "@flow(name='x')\ndef r(): f.with_options(retries=1)()"
            ),
            "f",
            ("a",),
            ("x",),
        ),
    ],
)
def test_every_way_to_make_a_step_is_found(text, name, datasets, flows):
    """Decorators, blocks and calls, under whatever name they were imported."""
    found = only(text)
    assert (found.name, found.datasets, found.flows) == (name, datasets, flows)


DRAWN = "Gaussian(sensitivity=1, sigma=20)"


@pytest.mark.parametrize(
    ("text", "undrawn"),
    [
        ("@guarded(dataset='a', cost=%s)\ndef f(): return 1", True),
        ("@guarded(dataset='a', cost=%s)\nasync def f(): return 1", True),
        ("@guarded(dataset='a', cost=%s)\ndef f(): return release(1)", False),
        ("@guarded(dataset='a', cost=%s)\ndef f(): return d.release(1)", False),
        ("@guarded(dataset='a', cost=%s)\ndef f(): return later(release, 1)", False),
        ("@guarded(dataset='a', cost=%s, noise='own')\ndef f(): return 1", False),
        (
            (
                "from dpflow import release as r\n"
                "@guarded(dataset='a', cost=%s)\ndef f(): return r(1)"
            ),
            False,
        ),
        # A function of the same file is followed.
        (
            (
                "def g(): return h()\ndef h(): return release(g)\n"
                "@guarded(dataset='a', cost=%s)\ndef f(): return g()"
            ),
            False,
        ),
        (
            (
                "def g(): return h()\ndef h(): return g()\n"
                "@guarded(dataset='a', cost=%s)\ndef f(): return g()"
            ),
            True,
        ),
        ("with spend(dataset='a', cost=%s, step='s'): x = 1", True),
        ("with spend(dataset='a', cost=%s, step='s') as c: c.release(1)", False),
        ("async def f():\n  async with spend(dataset='a', cost=%s): x = 1", True),
        ("g = guarded(dataset='a', cost=%s)(lambda: 1)", True),
        ("g = guarded(dataset='a', cost=%s)(lambda: release(1))", False),
        ("def f(): return 1\ng = guarded(dataset='a', cost=%s)(f)", True),
        # Where the body is not seen, nothing is said of it.
        ("g = guarded(dataset='a', cost=%s)(elsewhere.f)", False),
        ("stack.enter_context(spend(dataset='a', cost=%s))", False),
    ],
)
def test_a_body_without_a_draw_is_found(text, undrawn):
    """In every way to make a step; through functions of the file, and no further."""
    assert only(text % DRAWN).undrawn == undrawn


@pytest.mark.parametrize(
    ("cost", "undrawn"),
    [
        ("Laplace(sensitivity=1, epsilon=0.1)", True),
        # Its numbers are computed; what it is, is not.
        ("Gaussian(sensitivity=LIMITS.count(), sigma=20)", True),
        ("COST", True),
        ("ZCDP(rho=0.1)", False),
        ("EarlyStopping(Gaussian(sensitivity=1, sigma=40), stops=(5, 10))", False),
        ("lambda day: Gaussian(sensitivity=1, sigma=20)", False),
    ],
)
def test_only_what_release_would_draw_is_missed(cost, undrawn):
    """Other costs declare a guarantee of the body's own mechanism."""
    text = f"COST = {DRAWN}\n@guarded(dataset='a', cost={cost})\ndef f(): return 1"
    assert only(text).undrawn == undrawn


@pytest.mark.parametrize("name", ["sparse_vector", "iterations", "gradient_descent"])
def test_a_mechanism_of_dpflow_is_a_draw(name):
    """It claims the draw that the cost pays for."""
    text = f"@guarded(dataset='a', cost={DRAWN})\ndef f(): return {name}(1)"
    assert not only(text).undrawn
