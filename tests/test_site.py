"""The documentation is built without a warning and fetches nothing from elsewhere."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from tests.projects import ROOT


def build(folder: Path, target: Path) -> subprocess.CompletedProcess[str]:
    """Build the documentation of a folder; warnings are errors."""
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(target)],
        cwd=folder,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the built documentation."""
    folder = tmp_path_factory.mktemp("docs")
    script = ROOT / "docs" / "_site" / "write.py"
    subprocess.run([sys.executable, script, folder / "build" / "docs"], check=True)
    shutil.copy(ROOT / "mkdocs.yml", folder)
    target = folder / "site"
    done = build(folder, target)
    assert done.returncode == 0, done.stderr
    return target


def test_each_task_is_found_by_its_words(site: Path) -> None:
    """The first ten results of a search, titles first, have the page that answers."""
    index = json.loads((site / "search/search_index.json").read_text("utf-8"))["docs"]

    def results(phrase: str) -> list[str]:
        hits: dict[str, int] = {}
        for entry in index:
            page, title = entry["location"].partition(".html")[0], entry["title"]
            in_title = [word in title.lower() for word in phrase.split()]
            text = f"{title} {entry['text']}".lower()
            if all(word in text for word in phrase.split()):
                hits[page] = max(hits.get(page, 0), sum(in_title))
        return sorted(hits, key=lambda page: -hits[page])[:10]

    tasks = tomllib.loads((ROOT / "tests" / "tasks.toml").read_text("utf-8"))["words"]
    assert [task for task in tasks if tasks[task] not in results(task)] == []
    assert results("zebra") == []


def test_the_reference_has_every_public_name(site: Path) -> None:
    """The Python page has a heading for each, with its docstring and a link."""
    text = (site / "reference/python.html").read_text("utf-8")
    for module in (
        "dpflow",
        "dpflow.accounting",
        "dpflow.costs",
        "dpflow.interop",
        "dpflow.mechanisms",
        "dpflow.people",
        "dpflow.plots",
        "dpflow.policy",
        "dpflow.testing",
    ):
        place = re.escape(module)
        for name in import_module(module).__all__:
            if not name.startswith("__"):
                assert re.search(rf'id="{place}\.([\w.]+\.)?{name}"', text), name
    sources = set(re.findall(r'href="(source/[\w/]+\.py)"', text))
    assert len(sources) > 30
    assert all((site / "reference" / source).is_file() for source in sources)


def test_pages_have_generated_parts(site: Path) -> None:
    """The architecture has the figure of the packages, a page of figures its table."""
    assert "\nledger  " in (site / "architecture.html").read_text("utf-8")
    assert "<td>dpflow gdp</td>" in (site / "admitted.html").read_text("utf-8")


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    """Scripts, styles, fonts and pictures come from the site itself."""
    fetched = re.compile(
        r"<(?:script|img|link|source)[^>]+(?:src|href)=\"?(https?:[^\" >]+)"
    )
    for page in site.rglob("*.html"):
        addresses = [
            address
            for address in fetched.findall(page.read_text("utf-8"))
            if "canonical" not in address
        ]
        assert not addresses, (page, addresses)


def test_a_broken_link_fails_the_build(tmp_path: Path) -> None:
    """The check can fail."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("[gone](gone.md)", "utf-8")
    (tmp_path / "mkdocs.yml").write_text("site_name: x\nstrict: true\n", "utf-8")
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode != 0
    assert "gone.md" in done.stderr
