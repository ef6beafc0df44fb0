"""Figures. They are returned, never shown; matplotlib is the extra `plots`.

Each figure has a white background, colours that the colour-blind can tell apart, and a
sentence that says what it shows: `alt_text(figure)`.
"""

from dpflow.show.figures.burndown import BurnDown, burn_down, draw_burn_down
from dpflow.show.figures.by_flow import Composition, composition, draw_composition
from dpflow.show.figures.noise import epsilon_against_noise
from dpflow.show.figures.odometers import compare_odometers
from dpflow.show.figures.style import alt_text, data_uri, picture

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
