"""`dpflow demo`: the main job, end to end, on real data."""

# ruff: noqa: PLC0415 (`dpflow --help` must not wait for what the demo imports)

from __future__ import annotations

import typer

from dpflow.cli.output import AsJson


def demo(*, as_json: AsJson = False) -> None:
    """Run a weekly report on real data until its budget is used up.

    Example: `dpflow demo`
    """
    from dpflow.demo import run_demo

    raise typer.Exit(run_demo(as_json=as_json))
