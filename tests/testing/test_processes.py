"""The fixture for tests of pipelines, seen from other processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from dpflow.testing import dpflow_ledger  # noqa: F401 (a fixture)
from tests.projects import ROOT, run_python
from tests.testing.test_testing import VISITS

CHILD = """
import json, os
from dpflow import Gaussian, guarded, release
from dpflow.exceptions import ConfigurationError
from dpflow.ledger import open_ledger
os.environ.update(json.loads(os.sys.argv[1]))
count = guarded(dataset="visits", cost=Gaussian(sensitivity=1, sigma=20), name="child")
count(lambda: release(7.0))()
try:
    open_ledger("sqlite:///real.db", witness="none")
except ConfigurationError as error:
    print(json.dumps("keeps every ledger" in error.message))
"""


def test_child_processes_stay_inside_the_fence(dpflow_ledger):  # noqa: F811
    """They charge the test's ledger, with OpenDP's noise."""
    dpflow_ledger.use(VISITS)
    inherited = {k: v for k, v in os.environ.items() if k.startswith("DPFLOW_")}
    assert run_python(CHILD, json.dumps(inherited)) is True
    (charge,) = dpflow_ledger.charges()
    assert (charge.step, charge.noise) == ("child", "opendp")


ORDER = """
import os

def test_sets_a_variable(monkeypatch, dpflow_ledger):
    monkeypatch.setenv("DPFLOW_LEDGER_URL", "sqlite:///other.db")

def test_has_no_trace_of_it():
    assert not [n for n in os.environ if n.startswith("DPFLOW_") and n != "DPFLOW_X"]
"""


def test_a_test_leaves_no_trace_in_the_environment(tmp_path):
    """Also where the test patched what the fixture had set."""
    (tmp_path / "test_order.py").write_text(ORDER, "utf-8")
    plugins = ("-p", "no:cacheprovider", "-p", "dpflow.testing")
    clean = {k: v for k, v in os.environ.items() if not k.startswith("DPFLOW_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugins, str(tmp_path)],
        cwd=tmp_path,
        env={**clean, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr
