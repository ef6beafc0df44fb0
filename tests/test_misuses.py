"""What type checkers report of wrong calls, before anything runs."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dpflow
from tests.projects import ROOT

#: Wrong calls that both checkers report.
BOTH = """\
Gaussian(1, 20)
Gaussian(sensitvity=1, sigma=20)
Gaussian(sensitivity=1)
Gaussian(sensitivity=1, sigma=20, noise_multiplier=20)
Gaussian(sensitivity=1, sigma=20, noise="planned")
Gaussian(sensitivity=1, noise="plan")
Gaussian(sensitivity=[1], sigma=20)
Gaussian(sigma=20)
Laplace(sensitivity=1)
Laplace(sensitivity=1, scale=3, epsilon=1)
Laplace(sensitivity=1, scale=None)
DiscreteLaplace(sensitivity=1)
DiscreteLaplace(sensitivity=1, scale=3, epsilon=1)
DiscreteGaussian(sensitivity=1)
DiscreteGaussian(sensitivity=1, sigma=3, noise_multiplier=3)
RandomizedResponse(categories=2)
RandomizedResponse(epsilon=1, truth=0.9)
PureDP(0.5)
PureDP(epsilon=1, delta=0)
PureDP()
ApproxDP(epsilon=1)
ApproxDP(1, 1e-6)
ZCDP(0.1)
ZCDP(epsilon=0.1)
ExponentialMechanism(1)
PoissonSampledGaussian(sampling_rate=0.1)
PoissonSampledGaussian(sampling_rate=0.1, noise=1)
EarlyStopping(COST)
EarlyStopping(COST, stops=5)
SparseVector(positives=3)
SparseVector(positives=3, epsilon=1, epsilon_answers=1)
SparseVector(positives=3, epsilon_threshold=1)
Refined(COST)
Refined(COST, coarsest=80, spreads=[1])
Repeated(COST)
Repeated(3, COST)
Composed([COST, COST])
OutputDP(delta=0.1)
RenyiDP(order=8)
GaussianDP(1)
COST.half_width(confidnce=0.9)
guarded(dataset="shop")(body)
guarded(dataset="shop", cost=0.5)(body)
guarded(dataset="shop", cost=COST, privat=("rows",))(body)
guarded(dataset="shop", cost=COST, fresh="yes")(body)
guarded(dataset="shop", cost=COST, noise="mine")(body)
guarded(dataset="shop", cost=COST, load=read)(other_body)
dp_task(dataset="shop", cost=COST, retires=3)(body)
spend(dataset="shop", cost=COST)
release()
release(1, within=[1])
release("text")
check_spent(0.5, COST)
"""
#: Those that none reports: the values decide, and dpflow does at definition.
NEITHER = """\
Gaussian(sensitivity="one", sigma=20)
Gaussian(sensitivity=-1, sigma=20)
ApproxDP(epsilon=1, delta=2)
guarded(dataset="shop", cost=COST, private=("rosw",))(body)
guarded(dataset="shop", cost=COST, release_key="{week")(body)
"""
HEADER = """\
from dpflow import *
from dpflow.costs import GaussianDP, RenyiDP
from dpflow.interop import check_spent

COST = Gaussian(sensitivity=1, sigma=20)


def body(week: str) -> float:
    return release(len(week))


def read(week: str) -> list[int]:
    return [len(week)]


def other_body(rows: list[str]) -> float:
    return release(len(rows))


"""


def write_misuses(folder: Path) -> tuple[Path, dict[int, str]]:
    """Write a file with one misuse a line; return it with the lines' texts."""
    texts = [*BOTH.splitlines(), *NEITHER.splitlines()]
    file = folder / "misuses.py"
    file.write_text(HEADER + "\n".join(texts) + "\n", "utf-8")
    first = HEADER.count("\n") + 1
    return file, dict(enumerate(texts, first))


def lines_of_mypy(file: Path) -> set[int]:
    """Return the lines with an error."""
    command = [sys.executable, "-m", "mypy", "--strict", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    return {int(n) for n in re.findall(rf"{file.name}:(\d+): error", str(done.stdout))}


def lines_of_pyright(file: Path) -> set[int]:
    """Return the lines with an error, of a file or of all files of a folder."""
    pytest.importorskip("pyright")
    options = ["--outputjson", "--pythonpath", sys.executable, str(file)]
    command = [sys.executable, "-m", "pyright", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    reports = json.loads(done.stdout)["generalDiagnostics"]
    errors = [report for report in reports if report["severity"] == "error"]
    return {report["range"]["start"]["line"] + 1 for report in errors}


@pytest.mark.parametrize("lines", [lines_of_mypy, lines_of_pyright])
def test_a_checker_reports_wrong_calls(tmp_path, lines):
    """53 of 58, and nothing else: both checkers see the same."""
    file, texts = write_misuses(tmp_path)
    reported = [texts.get(line, line) for line in sorted(lines(file))]
    assert reported == BOTH.splitlines()
    assert (len(reported), len(texts)) == (53, 58)


def test_pyright_accepts_what_mypy_accepts():
    """Right calls have no error, and each marked line has one."""
    cases = ROOT / "tests/prefect/definitions/typing_cases.py"
    assert lines_of_pyright(cases) == set()


@pytest.mark.slow
def test_pyright_accepts_the_package() -> None:
    """Editors of users show its errors in the package, too."""
    assert lines_of_pyright(ROOT / "dpflow") == set()


def test_help_shows_the_parameters_of_a_cost():
    """As notebooks and `help` read them; a wrong call names them, too."""
    assert str(inspect.signature(dpflow.PureDP)).startswith("(*, epsilon: ")
    for name in dpflow.__all__:
        value = getattr(dpflow, name)
        if isinstance(value, type) and issubclass(value, dpflow.Cost):
            shown = [*inspect.signature(value).parameters]
            assert shown == [*inspect.signature(value.__init__).parameters][1:]
