"""What all figures share: opaque pictures, colours that can be told apart, words."""

from __future__ import annotations

import itertools

import pytest
from matplotlib.colors import to_rgb

from dpflow.show.figures import picture, style
from tests.projects import run_python

pytestmark = pytest.mark.quick


def figure():
    """Return a small figure with a sentence."""
    made = style.new_figure((2, 1))
    style.new_axes(made, title="a title", x="steps", y="epsilon")
    return style.describe(made, "Nothing is shown.")


def luminance(colour):
    """Return the relative luminance of a colour, as WCAG defines it."""
    parts = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in to_rgb(colour)
    ]
    return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), parts, strict=True))


#: What a protanope and a deuteranope see: linear maps of RGB (Machado et al. 2009).
SIGHTS = {
    "all": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "no red": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "no green": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
}


def distance(first, second, sight):
    """Return how far two colours are apart for somebody's sight."""
    seen = [
        [sum(w * p for w, p in zip(row, to_rgb(colour), strict=True)) for row in sight]
        for colour in (first, second)
    ]
    return sum((a - b) ** 2 for a, b in zip(*seen, strict=True)) ** 0.5


@pytest.mark.parametrize("sight", SIGHTS.values(), ids=SIGHTS.keys())
def test_colours_can_be_told_apart(sight):
    """For every kind of sight; an orange beside the red could not."""
    pairs = itertools.combinations(style.COLOURS, 2)
    assert min(distance(a, b, sight) for a, b in pairs) > 0.15
    if sight != SIGHTS["all"]:
        assert distance("#d55e00", "#b07700", sight) < 0.15


@pytest.mark.parametrize("colour", [*style.COLOURS, style.REFUSED, style.WRONG])
def test_colours_stand_out_from_white(colour):
    """By a contrast of 3, as graphics should."""
    assert 1.05 / (luminance(colour) + 0.05) >= 3


def test_no_two_of_fourteen_lines_look_the_same():
    """Where colours repeat, dashes differ."""
    looks = {(style.colour(n), str(style.dash(n))) for n in range(14)}
    assert len(looks) == 14


def test_the_same_figure_is_the_same_picture():
    """No date and no chance is in it."""
    for kind in ("png", "svg"):
        assert picture(figure(), kind) == picture(figure(), kind)


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
