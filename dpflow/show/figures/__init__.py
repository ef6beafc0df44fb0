"""Figures. They are returned, not opened; matplotlib is the extra `plots`.

Each figure has a white background, colours that the colour-blind can tell apart, and a
sentence that says what it shows: `alt_text(figure)`.
"""

from dpflow.show.figures.burndown import BurnDown, burn_down, draw_burn_down
from dpflow.show.figures.odometers import compare_odometers
from dpflow.show.figures.style import alt_text, data_uri, picture

__all__ = [
    "BurnDown",
    "alt_text",
    "burn_down",
    "compare_odometers",
    "data_uri",
    "draw_burn_down",
    "picture",
]
