"""Every program of benchmarks/ runs, once, at its smallest size."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module, reload
from operator import attrgetter
from pathlib import Path

import pytest

from benchmarks.guard_overhead import PHASES
from tests.tables import read_tables

ROOT = Path(__file__).parents[1]
PROGRAMS = read_tables(__file__)


def test_each_program_is_run_below():
    """A module of benchmarks/ is a program of the table, or one of these imports it."""
    texts = {
        path.stem: path.read_text("utf-8")
        for path in (ROOT / "benchmarks").glob("*.py")
    }
    assert {name for name, text in texts.items() if "__main__" in text} == {*PROGRAMS}
    used = "\n".join(texts.values())
    for name in texts.keys() - PROGRAMS:
        assert f"from {name} import" in used or f"from benchmarks.{name} import" in used


def test_each_phase_of_the_guard_is_a_function():
    """A benchmark of names that moved would start no more, unseen until `make slow`."""
    for module, path in PHASES.values():
        assert callable(attrgetter(path)(import_module(module)))


def test_an_import_changes_no_environment(monkeypatch):
    """The tests that run later in this process would have its settings."""
    monkeypatch.setattr(os, "environ", {})
    for name in ("guard_overhead", "ledger", "path", "verify"):
        reload(import_module(f"benchmarks.{name}"))
    assert os.environ == {}


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_benchmark_runs(program, tmp_path):
    """A goal that is missed (exit code 1) says only how fast this machine is."""
    arguments, end = PROGRAMS[program]
    paths = [ROOT, ROOT / "benchmarks"]
    result = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{program}", *arguments.split()],
        cwd=tmp_path,
        env={
            **os.environ,
            "DPFLOW_BENCH_SMALLEST": "1",
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode in {0, 1}, result.stderr
    assert end in result.stdout.strip().splitlines()[-1], result.stderr
    if end == "}":
        assert json.loads(result.stdout)
