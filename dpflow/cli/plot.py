"""`dpflow plot`: pictures of a budget and of the odometers, as PNG or SVG."""

# ruff: noqa: PLC0415 (`dpflow --help` must not wait for the ledger)

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dpflow.cli.output import Answer
from dpflow.cli.source import check_known, project_ledger
from dpflow.config import short_path
from dpflow.exceptions import ConfigurationError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

app = typer.Typer(
    no_args_is_help=True, help="Draw a budget or the odometers, as a PNG or an SVG."
)


class Over(StrEnum):
    """What a burn-down has from left to right."""

    CHARGES = "charges"
    DATES = "dates"


@app.command("burndown")
def burn_down(
    dataset: str, *, out: Path, over: Over | None = None, no_forecast: bool = False
) -> Answer:
    """Draw the remaining budget of a dataset, with alerts, refusals and a forecast.

    Example: `dpflow plot burndown sales --out burndown.png`
    """
    from dpflow.forecast import budget_line, outlooks
    from dpflow.policy.files import readable_policies
    from dpflow.show.figures.burndown import BurnDown, draw_burn_down, nothing_charged

    with project_ledger() as (result, ledger):
        alerts = getattr(readable_policies(result.policies).get(dataset), "alerts", ())
        line = None if no_forecast else budget_line(outlooks(ledger, dataset))
        data = BurnDown.read(ledger, dataset, alerts=alerts, line=line)
        if data is None:
            # A misspelt dataset has its own error.
            check_known(result, ledger, dataset)
            raise nothing_charged(dataset)
    figure = draw_burn_down(data, over=None if over is None else over.value)
    return _write(figure, out)


@app.command("odometers")
def odometers(
    *,
    out: Path,
    steps: int = 100,
    epsilon: str = "0.1",
    delta: str = "1e-6",
    halt_at_epsilon: str = "5",
) -> Answer:
    """Draw the reading of every odometer over the same steps.

    Example: `dpflow plot odometers --out odometers.png`
    """
    from dpflow.show.figures.odometers import compare_odometers

    figure = compare_odometers(
        steps=steps, epsilon=epsilon, delta=delta, halt_at_epsilon=halt_at_epsilon
    )
    return _write(figure, out)


def _write(figure: Figure, out: Path) -> Answer:
    from dpflow.show.figures.style import alt_text, picture

    kind = out.suffix.lower().removeprefix(".")
    write_file(out, picture(figure, kind, dpi=150))
    alt = alt_text(figure)
    lines = [f"Wrote {short_path(out)}.", "", alt]
    return {"out": str(out), "kind": kind, "alt": alt}, lines


def write_file(out: Path, data: bytes) -> None:
    """Write a picture or a page.

    Raises:
        ConfigurationError: If it cannot be written there.
    """
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_bytes(data)
    except OSError as error:
        msg = f"cannot write {out}: {error.strerror or error}"
        raise ConfigurationError(msg) from error
