"""What type checkers report of wrong calls, before anything runs."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import dpflow
from dpflow.cli import app
from tests.pages import blocks
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


def errors_of_pyright(*paths: Path) -> list[tuple[str, int]]:
    """Return the file's name and the line of each error, in the order of both."""
    pytest.importorskip("pyright")
    options = ["--outputjson", "--pythonpath", sys.executable, *map(str, paths)]
    command = [sys.executable, "-m", "pyright", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    return sorted(
        {
            (Path(report["file"]).name, report["range"]["start"]["line"] + 1)
            for report in json.loads(done.stdout)["generalDiagnostics"]
            if report["severity"] == "error"
        }
    )


#: Airflow, Dagster and MCP are not installed with the tests' tools.
UNCHECKED = {"agents", "orchestrators"}
PAGES = [
    ROOT / "README.md",
    *(ROOT / "docs" / f"{name}.md" for name in ("quickstart", "budget-over-time")),
    *(p for p in (ROOT / "docs/guides").glob("*.md") if p.stem not in UNCHECKED),
]


def write_blocks(page: Path, folder: Path) -> None:
    """Write a page's code as a package whose files import each other."""
    code = [b for b in blocks(page.read_text("utf-8")) if b.language == "python"]
    names = [Path(b.name).stem for b in code if b.name]
    folder.mkdir()
    (folder / "__init__.py").touch()
    for number, block in enumerate(code):
        text = re.sub(rf"^from ({'|'.join(names)}) ", r"from .\1 ", block.text, flags=8)
        stem = Path(block.name).stem if block.name else f"block_{number}"
        (folder / f"{stem}.py").write_text(text if names else block.text, "utf-8")


#: The lines of the file of misuses, by their numbers.
MISUSES = dict(
    enumerate([*BOTH.splitlines(), *NEITHER.splitlines()], HEADER.count("\n") + 1)
)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write one misuse a line, and the code of pages and of a new project."""
    folder = tmp_path_factory.mktemp("written")
    text = HEADER + "\n".join(MISUSES.values()) + "\n"
    (folder / "misuses.py").write_text(text, "utf-8")
    for page in PAGES:
        write_blocks(page, folder / page.stem.replace("-", "_"))
    options = ["init", "--yes", "--dataset", "orders", "--unit", "customer"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        made = CliRunner().invoke(app, [*options, "--flow", "daily-orders"])
    assert made.exit_code == 0
    return folder


def test_mypy_reports_wrong_calls_and_accepts_what_users_see(written):
    """53 of 58 misuses, and nothing of pages and of the files of `init`."""
    command = [sys.executable, "-m", "mypy", "--strict", str(written)]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, check=False).stdout
    errors = [line for line in output.decode().splitlines() if ": error: " in line]
    lines = {int(n) for n in re.findall(r"misuses.py:(\d+): error", "\n".join(errors))}
    assert [error for error in errors if "misuses.py:" not in error] == []
    assert [MISUSES.get(line, line) for line in sorted(lines)] == BOTH.splitlines()
    assert (len(lines), len(MISUSES)) == (53, 58)


def test_pyright_reports_what_mypy_reports(written):
    """Right calls have no error, and each line that is marked as wrong has one."""
    cases = ROOT / "tests/prefect/definitions/typing_cases.py"
    errors = errors_of_pyright(written / "misuses.py", cases)
    assert {name for name, _ in errors} == {"misuses.py"}
    assert [MISUSES.get(line, line) for _, line in errors] == BOTH.splitlines()


@pytest.mark.slow
def test_pyright_accepts_the_package() -> None:
    """Editors of users show its errors in the package, too."""
    assert errors_of_pyright(ROOT / "dpflow") == []


def test_help_shows_the_parameters_of_a_cost():
    """As notebooks and `help` read them; a wrong call names them, too."""
    assert str(inspect.signature(dpflow.PureDP)).startswith("(*, epsilon: ")
    for name in dpflow.__all__:
        value = getattr(dpflow, name)
        if isinstance(value, type) and issubclass(value, dpflow.Cost):
            shown = [*inspect.signature(value).parameters]
            assert shown == [*inspect.signature(value.__init__).parameters][1:]
