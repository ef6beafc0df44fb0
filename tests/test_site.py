"""The documentation is built without a warning and fetches nothing from elsewhere."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from tests.projects import ROOT
from tests.test_surface import MODULES


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


def test_each_task_is_found_by_its_words(site):
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


def test_words_of_a_search_are_split(site):
    """At brackets, dots, slashes and a change of case; derivations are left out."""
    index = json.loads((site / "search/search_index.json").read_text("utf-8"))
    separator = index["config"]["separator"]
    text = "budget (PLB), PySpark/dask: dpflow.costs 0.13"
    words = ["budget", "PLB", "Py", "Spark", "dask", "dpflow", "costs", "0.13"]
    assert [word for word in re.split(separator, text) if word] == words
    pages = {entry["location"] for entry in index["docs"]}
    assert "guarantee.html" in pages
    assert [page for page in pages if page.startswith("derivations")] == []
    assert (site / "derivations/rdp.html").is_file()


@pytest.mark.parametrize("module", ["dpflow", *(f"dpflow.{m}" for m in MODULES)])
def test_the_reference_has_every_public_name(site, module):
    """A module's page has a heading for each, with a link; one page lists them all."""
    text = (site / f"reference/{module}.html").read_text("utf-8")
    overview = (site / "reference/python.html").read_text("utf-8")
    for name in import_module(module).__all__:
        if not name.startswith("__"):
            pattern = rf'id="{re.escape(module)}\.([\w.]+\.)?{name}"'
            assert re.search(pattern, text), name
            assert f'"{module}.html#{module}.{name}"' in overview
    sources = set(re.findall(r'href="(source/[\w/]+\.py)"', text))
    assert sources
    assert all((site / "reference" / source).is_file() for source in sources)


def test_the_first_page_is_the_readme(site):
    """With links that lead to pages of the site."""
    text = (site / "index.html").read_text("utf-8")
    assert "In twenty lines" in text
    for page in ("quickstart.html", "contributing.html", "changelog.html", "LICENSE"):
        assert f'href="{page}"' in text
        assert (site / page).is_file()


def test_an_alert_becomes_a_box(monkeypatch):
    """As hosts of repositories show it; a quotation stays one."""
    monkeypatch.syspath_prepend(ROOT / "docs" / "_site")
    write = runpy.run_path(str(ROOT / "docs" / "_site" / "write.py"))
    text = "A.\n\n> [!WARNING]\n> One `x`.\n> Two.\n\n> B\n"
    box = "A.\n\n!!! warning\n\n    One `x`.\n    Two.\n\n> B\n"
    assert write["_ALERT"].sub(write["_box"], text) == box


def test_pages_have_generated_parts(site):
    """The architecture has the figure of the packages, a page of figures its table."""
    assert "\nledger  " in (site / "architecture.html").read_text("utf-8")
    assert "<td>dpflow gdp</td>" in (site / "admitted.html").read_text("utf-8")


def test_nothing_is_fetched_from_elsewhere(site):
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


def test_a_broken_link_fails_the_build(tmp_path):
    """The check can fail."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("[gone](gone.md)", "utf-8")
    (tmp_path / "mkdocs.yml").write_text("site_name: x\nstrict: true\n", "utf-8")
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode != 0
    assert "gone.md" in done.stderr
