"""Figures. They are returned, never shown; matplotlib is the extra `plots`.

Each figure has a white background, colours that the colour-blind can tell apart, and a
sentence that says what it shows: `alt_text(figure)`.
"""

from dpflow.plots.burndown import BurnDown, burn_down, draw_burn_down
from dpflow.plots.by_flow import Composition, composition, draw_composition
from dpflow.plots.noise import epsilon_against_noise
from dpflow.plots.odometers import compare_odometers
from dpflow.plots.style import alt_text, data_uri, picture

__all__ = [
    "BurnDown",
    "Composition",
    "alt_text",
    "burn_down",
    "compare_odometers",
    "composition",
    "data_uri",
    "draw_burn_down",
    "draw_composition",
    "epsilon_against_noise",
    "picture",
]
