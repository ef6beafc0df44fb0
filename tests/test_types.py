"""Code of the pages and of a new project passes `mypy --strict`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

from dpflow.cli import app
from tests.pages import blocks
from tests.projects import ROOT

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


def strict_errors(folder: Path) -> list[str]:
    """Return what mypy reports of a folder, with the options of the project."""
    command = [sys.executable, "-m", "mypy", "--strict", str(folder)]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, check=False).stdout
    return [line for line in output.decode().splitlines() if ": error: " in line]


def test_code_that_users_see_is_typed(tmp_path, monkeypatch):
    """Pages and the files of `init` have no error, and a wrong call has one."""
    for page in PAGES:
        write_blocks(page, tmp_path / page.stem.replace("-", "_"))
    monkeypatch.chdir(tmp_path)
    options = ["init", "--yes", "--dataset", "orders", "--unit", "customer"]
    made = CliRunner().invoke(app, [*options, "--flow", "daily-orders"])
    assert made.exit_code == 0
    wrong = 'from dpflow import release\nrelease("a", within="1")\n'
    (tmp_path / "wrong.py").write_text(wrong, "utf-8")
    (error,) = strict_errors(tmp_path)
    assert "wrong.py:2: error: No overload variant" in error
