"""`dpflow demo` hands over to the demo and passes its answer on."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from dpflow import demo
from dpflow.demo import run_demo
from tests.cli.support import run


def test_the_demo_takes_what_the_command_gives() -> None:
    """The command is thin; the demo's own tests run it."""
    assert "as_json" in inspect.signature(run_demo).parameters
    assert "real data" in run("demo", "--help").stdout


def test_what_the_demo_lacks_is_said_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one line that says how to install it, and nothing is made before."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DPFLOW_DATA", raising=False)
    found = demo.find_spec
    monkeypatch.setattr(
        demo, "find_spec", lambda name: None if name == "lifetimes" else found(name)
    )
    result = run("demo")
    assert result.exit_code == 1
    assert "the demo needs lifetimes; " in result.stderr
    assert "pip install '.[examples]'" in result.stderr
    assert list(tmp_path.iterdir()) == []
