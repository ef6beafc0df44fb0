"""What all figures share: opaque pictures, colours that can be told apart, words."""

from __future__ import annotations

import pytest

from dpflow.show.figures import style
from tests.projects import run_python

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("weekly-report", "weekly-report"),
        ("a$b$", r"a\$b\$"),
        ("_x", " _x"),
        ("a\x1b[31m\nb\u202e", "a\N{BULLET}[31m b\N{BULLET}"),
        ("x" * 40, "x" * 16 + "\N{HORIZONTAL ELLIPSIS}" + "x" * 16),
    ],
)
def test_names_are_harmless(name, shown):
    """No formula, no control sign, no name that a legend hides, none too long."""
    assert style.label(name) == shown


def test_importing_figures_loads_no_drawing_and_no_window():
    """Matplotlib is loaded by the first figure, pyplot never."""
    script = """
import json, sys
import dpflow.show.figures
before = "matplotlib" in sys.modules
dpflow.show.figures.picture(dpflow.show.figures.style.new_figure(), "svg")
print(json.dumps([before, "matplotlib.pyplot" in sys.modules]))
"""
    assert run_python(script) == [False, False]
