"""`dpflow demo`: the main job, end to end, on real data."""

from __future__ import annotations

from importlib import import_module

import typer

from dpflow.cli.output import AsJson


def demo(*, as_json: AsJson = False) -> None:
    """Run a weekly report on real data until its budget is used up.

    Example: `dpflow demo`
    """
    found = import_module("dpflow.contrib.demo").run_demo(as_json=as_json)
    raise typer.Exit(found)
