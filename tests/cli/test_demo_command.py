"""`dpflow demo` hands over to the demo and passes its answer on."""

from __future__ import annotations

import inspect

from dpflow.demo import run_demo
from tests.cli.support import run


def test_the_demo_takes_what_the_command_gives() -> None:
    """The command is thin; the demo's own tests run it."""
    assert "as_json" in inspect.signature(run_demo).parameters
    assert "real data" in run("demo", "--help").stdout
