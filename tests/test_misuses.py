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
from tests.tables import read_tables

TABLES = read_tables(__file__)
HEADER = f"{TABLES['header']}\n\n"
BOTH, NEITHER = (TABLES[name].splitlines() for name in ("both", "neither"))
#: The lines of the file of misuses, by their numbers.
MISUSES = dict(enumerate([*BOTH, *NEITHER], HEADER.count("\n") + 1))


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
    assert [MISUSES.get(line, line) for line in sorted(lines)] == BOTH
    assert (len(lines), len(MISUSES)) == (53, 58)


def test_pyright_reports_what_mypy_reports(written):
    """Right calls have no error, and each line that is marked as wrong has one."""
    cases = ROOT / "tests/prefect/definitions/typing_cases.py"
    errors = errors_of_pyright(written / "misuses.py", cases)
    assert {name for name, _ in errors} == {"misuses.py"}
    assert [MISUSES.get(line, line) for _, line in errors] == BOTH


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
