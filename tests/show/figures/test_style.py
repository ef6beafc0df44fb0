"""What all figures share: opaque pictures, colours that can be told apart, words."""

from __future__ import annotations

import pytest

from tests.projects import run_python

pytestmark = pytest.mark.quick


def test_importing_figures_loads_no_drawing_and_no_window():
    """Matplotlib is loaded by the first figure, pyplot never."""
    script = """
import json, sys
import dpflow.show.figures
before = "matplotlib" in sys.modules
dpflow.show.figures.picture(dpflow.show.figures.style.new_figure("", "")[0], "svg")
print(json.dumps([before, "matplotlib.pyplot" in sys.modules]))
"""
    assert run_python(script) == [False, False]
