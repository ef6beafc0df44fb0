"""What all figures share: colours, sizes, harmless labels, and how they are written."""

from __future__ import annotations

import base64
import io
import warnings
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from dpflow.exceptions import ConfigurationError, how_to_install, require
from dpflow.notebook import plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Inches.
SIZE = (8.0, 4.2)
TEXT, GRID, REFUSED = "#262626", "#d9d9d9", "#b3261e"
#: Okabe and Ito's colours, for every kind of sight; brown and a stronger blue stand for
#: those that are too pale on white.
COLOURS = ("#0072b2", "#d55e00", "#00805a", "#a8518a", "#7a4a00", "#3d9bd6", "#262626")
#: So that lines differ without colour, too.
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 3)), (0, (1, 1)))

_LONGEST = 34
FORMATS = {"png": "image/png", "svg": "image/svg+xml"}


def new_figure(
    title: str, y: str, size: tuple[float, float] = SIZE
) -> tuple[Figure, Any]:
    """Make a figure and its axes, on an opaque, white background.

    Args:
        title: Title of the figure, with names escaped by `label`.
        y: Label of the vertical axis, with its unit.
        size: Width and height in inches.

    Raises:
        ConfigurationError: If matplotlib is missing.
    """
    try:
        # The class itself: no window system, no global state of pyplot.
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError:
        msg = f"figures need matplotlib; {how_to_install('plots')}"
        raise ConfigurationError(msg) from None
    figure = Figure(figsize=size, layout="constrained", facecolor="white")
    axes: Any = figure.subplots()
    axes.set_facecolor("white")
    axes.set_title(title, loc="left", color=TEXT, fontsize=11)
    axes.set_ylabel(y, color=TEXT)
    axes.grid(axis="y", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def look(position: int) -> dict[str, Any]:
    """Return the colour and the dashes of the line at this place."""
    # The eighth line has the first one's colour, and other dashes.
    dashes = DASHES[(position + position // len(COLOURS)) % len(DASHES)]
    return {"color": COLOURS[position % len(COLOURS)], "linestyle": dashes}


def label(name: str, longest: int = _LONGEST) -> str:
    """Make a name from a journal harmless in a figure.

    Matplotlib reads what stands between dollars as a formula, and leaves what begins
    with an underscore out of legends. Long names lose their middle.
    """
    text = plain(name).replace("\n", " ")
    if len(text) > longest:
        half = (longest - 1) // 2
        text = f"{text[:half]}\N{HORIZONTAL ELLIPSIS}{text[-half:]}"
    text = text.replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def number(value: Fraction) -> str:
    """Write a number as short as people do: 3, 0.5, 1e-6."""
    return f"{float(value):g}".replace("e-0", "e-")


def legend(axes: Any, **options: Any) -> None:
    """Put a legend of the lines to the right of the axes, where it covers none."""
    anchor = {"loc": "upper left", "bbox_to_anchor": (1.01, 1)}
    axes.legend(**anchor, frameon=False, fontsize=9, **options)


def alt_text(figure: Figure) -> str:
    """Return the sentence that says what a figure shows, from its data."""
    return str(figure.get_label())


def picture(figure: Figure, kind: str = "png", *, dpi: int = 110) -> bytes:
    """Return a figure as the bytes of a picture.

    Args:
        figure: One of this package.
        kind: "png" or "svg".
        dpi: Dots per inch of a PNG.

    Raises:
        ConfigurationError: If the kind is another.
    """
    msg = f"pictures are of kind {' or '.join(FORMATS)}, got {kind!r}"
    require(kind in FORMATS, msg)
    from matplotlib import rc_context  # noqa: PLC0415

    # Without a date and chance, the same figure is the same picture.
    about = {
        "Description": alt_text(figure),
        **({"Date": None} if kind == "svg" else {}),
    }
    buffer = io.BytesIO()
    with warnings.catch_warnings(), rc_context({"svg.hashsalt": "dpflow"}):
        # A letter that the font lacks is drawn as a box.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(buffer, format=kind, dpi=dpi, facecolor="white", metadata=about)
    return buffer.getvalue()


def data_uri(figure: Figure, kind: str = "png", *, dpi: int = 110) -> str:
    """Return a picture inside a `data:` address, for pages and artifacts."""
    data = base64.b64encode(picture(figure, kind, dpi=dpi)).decode()
    return f"data:{FORMATS[kind]};base64,{data}"
