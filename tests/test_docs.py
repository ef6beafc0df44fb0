"""What the documents show can be read: policies, code and YAML."""

from __future__ import annotations

import ast
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from typer.main import get_command

import dpflow
from dpflow.accounting.costs.text import cost_from_text
from dpflow.cli import app
from dpflow.exceptions import PolicyError, UnsupportedCost, how_to_install
from dpflow.policy import parse_policy
from dpflow.show.gauges import _GAUGES
from tests.tables import read_tables

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parent.parent
ROWS = read_tables(__file__)
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = [
    pytest.param(language, text, id=f"{path.relative_to(ROOT)}-{number}")
    for path in DOCUMENTS
    for number, (language, text) in enumerate(_BLOCK.findall(path.read_text("utf-8")))
]


@pytest.mark.parametrize(("language", "text"), BLOCKS)
def test_a_block_can_be_read(language, text):
    """A policy is a valid policy, Python is Python, YAML is YAML."""
    if language == "python":
        ast.parse(text)
    elif language == "yaml":
        data = yaml.safe_load(text)
        if {"dataset", "population"} & data.keys() and "budget" in data:
            parse_policy(text)
    else:
        assert language in {"toml", "sh", "sql", "text", "console"}


def test_the_check_of_blocks_can_fail():
    """Pages have policies and code, and a broken policy is reported."""
    languages = [block.values[0] for block in BLOCKS]
    assert min(languages.count("yaml"), languages.count("python")) >= 4
    with pytest.raises(Exception, match="epsilon"):
        test_a_block_can_be_read("yaml", "dataset: a\nbudget: {epsilon: -1}\n")


PROMISES = SimpleNamespace(**run_path(str(ROOT / "docs" / "_site" / "promises.py")))


def test_each_promise_has_tests_and_each_marker_a_promise():
    """The table of failures is not a wish list; the site names the tests."""
    text = (ROOT / "docs" / "failures.md").read_text("utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ")][2:]
    promised = [PROMISES.PLACEHOLDER.findall(row) for row in rows]
    assert len(rows) > 50
    assert all(promised)
    marked = PROMISES.promises()
    assert {name for names in promised for name in names} == marked.keys()
    page = PROMISES.with_tests("a fork: {fork}", marked)
    assert page.startswith(f"a fork: `{marked['fork'][0]}`")
    assert page.count("`test_") == len(marked["fork"]) > 1


def test_a_marker_is_read_where_it_stands(tmp_path):
    """A test may show several promises; others show none."""
    source = "@pytest.mark.promise('a', 'b')\ndef test_x(): ...\ndef test_y(): ...\n"
    (tmp_path / "test_a.py").write_text(source, "utf-8")
    assert PROMISES.promises(tmp_path) == {"a": ["test_x"], "b": ["test_x"]}


ARCHITECTURE = ROOT / "docs" / "architecture.md"


def test_the_files_that_the_architecture_names_exist():
    """A reader who follows a table finds something; and a wrong path is found."""

    def missing(text: str) -> list[str]:
        named = re.findall(r"`((?:\w+/)+(?:\w+\.\w+)?)`", text)
        return [n for n in named if not any((r / n).exists() for r in places)]

    places = (ROOT, ROOT / "dpflow", ROOT / "docs")
    assert missing(ARCHITECTURE.read_text("utf-8")) == []
    assert missing("`ledger/nowhere.py`") == ["ledger/nowhere.py"]


#: A requirement with an extra, or an installer that is given the bare name.
_BY_NAME = re.compile(
    r"(?<!_)\bdpflow\[\w|"
    r"\b(?:pip3?|pipx|uv)\s[^\n`]*?(?<![\w./-])(?:prefect-)?dpflow\b(?![\w./-])"
)


def _texts() -> Iterator[tuple[str, str]]:
    """Yield everything that people read, by its path."""
    for folder in ("docs", "flows", "dpflow"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in {".md", ".py", ".html", ".yml", ".yaml", ".sql"}:
                yield str(path.relative_to(ROOT)), path.read_text("utf-8")
    for name in ("README.md", "CONTRIBUTING.md", "Makefile", "prefect.yaml"):
        yield name, (ROOT / name).read_text("utf-8")


def test_no_text_installs_dpflow_by_its_name():
    """Package indexes have another project of that name, and not yet this one."""
    texts = dict(_texts())
    assert {"README.md", "docs/quickstart.md", "dpflow/exceptions.py"} <= texts.keys()
    assert [name for name, text in texts.items() if _BY_NAME.search(text)] == []
    for command in ROWS["by_name"]:
        assert _BY_NAME.search(command)
    assert not _BY_NAME.search("pip install './prefect_dpflow-0.1.0-py3-any.whl[pld]'")


def test_install_errors_name_the_wheel_and_an_extra():
    """The sentence has the wheel's version, and each extra in the code exists."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
        "optional-dependencies"
    ]
    message = how_to_install("opendp")
    assert f"prefect_dpflow-{dpflow.__version__}-py3-none-any.whl[opendp]" in message
    assert "'.[opendp]'" in message
    calls = [re.findall(r"how_to_install\(.(\w+).\)", text) for _, text in _texts()]
    assert len(set().union(*calls)) >= 4
    assert set().union(*calls) <= extras.keys()


def test_a_package_page_has_no_relative_link(monkeypatch):
    """The README of a distribution links to its repository, or has no such link."""
    base = SimpleNamespace(MetadataHookInterface=object)
    monkeypatch.setitem(sys.modules, "hatchling.metadata.plugin.interface", base)
    describe = run_path(str(ROOT / "hatch_build.py"))["long_description"]
    text = "![p](p.svg) [a](docs/a.svg#b) [c](https://c.example) [d](#d)"
    home = "https://h.example/o/n"
    assert describe(text, "") == "p a [c](https://c.example) [d](#d)"
    assert describe(text, home) == (
        f"![p]({home}/raw/main/p.svg) [a]({home}/blob/main/docs/a.svg#b) "
        "[c](https://c.example) [d](#d)"
    )


_SHELL = re.compile(
    r"^```(?:console|sh|text)\n(.*?)^```$|`(dpflow [^`\n]+)`", re.MULTILINE | re.DOTALL
)
COMMANDS: Any = get_command(app)
_CALL = re.compile(r"(?:^|[$|&;(:] ?|do )dpflow (.+)", re.MULTILINE)


def wrong_calls(text: str) -> list[str]:
    """Return the calls of the command line that name what it does not have.

    Args:
        text: Lines of a shell or of a runner.
    """
    wrong = []
    for call in _CALL.findall(text.replace("\\\n", " ")):
        # The next command, a comment, and texts in quotes are other words.
        words = re.split(r" [;|&>)#]|[;)]", re.sub(r"'[^']*'|\"[^\"]*\"", "", call))
        named, command = words[0].split(), COMMANDS
        while named and named[0] in getattr(command, "commands", ()):
            command = command.commands[named.pop(0)]
        options = {"--help", "--version"}
        options |= {option for each in command.params for option in each.opts}
        used = {word.partition("=")[0] for word in named if word.startswith("--")}
        unknown = hasattr(command, "commands") and any(w[0].islower() for w in named)
        wrong += [call] * bool(used - options or unknown)
    return wrong


def shells(path: Path) -> str:
    """Return what a page says in a shell, or the whole of a runner's file."""
    text = path.read_text("utf-8")
    if path.suffix != ".md":
        return text
    return "\n".join(block or span for block, span in _SHELL.findall(text))


@pytest.mark.parametrize(
    "path",
    [*DOCUMENTS, *(ROOT / name for name in (".pre-commit-hooks.yaml", "action.yml"))],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_texts_name_commands_and_options_that_there_are(path):
    """A command that was renamed fails for each reader, and in others' runners."""
    assert wrong_calls(shells(path)) == []


def test_a_wrong_command_is_found():
    """Behind others, over two lines; what is right is not reported."""
    right = "$ dpflow policy check --strict\n$ dpflow status a | wc --lines\ndpflow\n"
    assert wrong_calls(right) == []
    for wrong in ROWS["wrong_calls"]:
        assert len(wrong_calls(wrong)) == 1, wrong


def test_the_table_of_filters_agrees_with_prices_and_policies():
    """Each yes and each no of the guide is the answer of a filter or of a policy."""
    page = (ROOT / "docs" / "guides" / "filters.md").read_text("utf-8")
    head = "dataset: a\nunit: b\nrelation: add-or-remove\n"
    head += "budget: {epsilon: 3, delta: 1e-6}\nfilter: "
    costs = map(cost_from_text, ROWS["costs"])
    tried = [*costs, *ROWS["flows"]]
    rows = re.findall(r"^\| `([\w-]+)` \| (.*) \|$", page, re.MULTILINE)
    assert len(rows) == 9
    for theorem, cells in rows:
        for cell, case in zip(cells.split(" | "), tried, strict=True):
            answer, flow = "yes", f"c: {{{case}}}" if isinstance(case, str) else ""
            text = f"{head}{theorem}\nflows: {{{flow}}}"
            try:
                rule = parse_policy(text).dataset_filter()
                assert flow or rule.price(case)
            except (PolicyError, UnsupportedCost):
                answer = "no"
            assert cell == answer or cell not in {"yes", "no"}, (theorem, cell, case)


MONITORING = ROOT / "docs" / "monitoring"
#: Labels of the gauges, and the node exporter's own.
_LABELS = {"project", "dataset", "flow", "account", "name", "part", "term", "file"}


def wrong_names(text: str) -> set[str]:
    """Return the gauges and labels of a dashboard or of rules that do not exist."""
    field = r"\{\{ ?(?:\$labels\.)?(?!end )(\w+) ?\}\}|[{,](\w+)[!=]~"
    labels = re.findall(field, text)
    named = {name for pair in labels for name in pair if name}
    return (named - _LABELS) | (set(re.findall(r"\bdpflow_\w+", text)) - {*_GAUGES})


def test_dashboard_and_alerts_read_gauges_that_exist():
    """Each shows all gauges; a renamed gauge or label is found."""
    board = (MONITORING / "dashboard.json").read_text("utf-8")
    rules = (MONITORING / "alerts.yml").read_text("utf-8")
    for text in (board, rules):
        assert wrong_names(text) == set()
        assert [name for name in _GAUGES if name not in text] == []
        assert wrong_names(text.replace("dpflow_stopped", "dpflow_halted"))
        assert wrong_names(re.sub(r"dataset( ?\}\})", r"book\1", text))
    panels = json.loads(board)["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) == len(_GAUGES)
    assert all(panel["targets"][0]["expr"] for panel in panels)
    (group,) = yaml.safe_load(rules)["groups"]
    for rule in group["rules"]:
        words = rule["annotations"]["action"].split()
        assert words[0] == "dpflow"
        assert words[1] in COMMANDS.commands
