"""Order of imports, purity, sizes of files, and the table of changes."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Collection, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import dpflow.ledger
from dpflow.accounting import FILTERS, ODOMETERS
from tests.projects import ROOT, run_python
from tests.tables import read_tables

pytestmark = pytest.mark.quick

PACKAGE = ROOT / "dpflow"
FILES = sorted(PACKAGE.rglob("*.py"))

TABLES = read_tables(__file__)
#: Lists of names; the YAML file says what each holds.
NAMES = {name: text.split() for name, text in TABLES.items() if isinstance(text, str)}
LAYERS = NAMES["layers"]
EXCEPTIONS = {(module, name) for module, name in TABLES["exceptions"]}
FOR_TYPES = {(module, name) for module, name in TABLES["for_types"]}
SCHEMA, READING, DECIDING = (
    {*NAMES[name]} for name in ("schema", "reading", "deciding")
)


def module_name(path: Path) -> str:
    """Return the dotted name of a file of the package."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def nodes(source: str) -> list[ast.AST]:
    """Return every node of a source."""
    return list(ast.walk(ast.parse(source)))


@cache
def imports(source: str) -> list[str]:
    """Return every module that a source imports, wherever it does so."""
    return list(_imports(nodes(source)))


def _imports(tree: list[ast.AST]) -> Iterator[str]:
    for node in tree:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = "." * node.level + (node.module or "")
            names = [f"{package}.{alias.name}" for alias in node.names]
            # `from dpflow import ledger` imports a layer by way of the package.
            layers = [name for name in names if name.partition(".")[2] in LAYERS]
            yield from layers if len(layers) == len(names) else [package, *layers]
        elif isinstance(node, ast.Call) and _loads_by_name(node):
            texts = (str(getattr(each, "value", "")) for each in node.args)
            yield from (text for text in texts if text.startswith("dpflow."))


def _loads_by_name(call: ast.Call) -> bool:
    names = (getattr(call.func, "id", ""), getattr(call.func, "attr", ""))
    return "import_module" in names


def layer(module: str) -> str:
    """Return the layer of a module of dpflow, the innermost that has a place."""
    parts = module.split(".")
    inner = (".".join(parts[1:end]) for end in (4, 3))
    return next((name for name in inner if name in LAYERS), parts[1])


def upward_imports(sources: dict[str, str]) -> list[str]:
    """Return every import that breaks the order of the layers."""
    result = []
    for module, source in sources.items():
        for name in imports(source):
            if name.startswith("."):
                result.append(f"{module}: relative import {name}")
            elif name == "dpflow":
                # Its public names; the version is all that the CLI needs of them.
                if layer(module) != "cli":
                    result.append(f"{module} imports the public names")
            elif name.startswith("dpflow."):
                if layer(name) not in LAYERS:
                    result.append(f"{module} imports {name}, which has no place")
                elif _is_below(name, module) and (module, name) not in EXCEPTIONS:
                    result.append(f"{module} imports {name}")
    return result


def _is_below(name: str, module: str) -> bool:
    return LAYERS.index(layer(name)) > LAYERS.index(layer(module))


def imports_prefect(source: str) -> bool:
    """Return True if a source imports Prefect."""
    return any(name.split(".")[0] == "prefect" for name in imports(source))


def impurities(module: str, source: str) -> list[str]:
    """Return what a source of pure maths must not have."""
    names = set(imports(source))
    roots = {name.split(".")[0] for name in names} - {*NAMES["pure"], "dpflow"}
    roots |= {name for name in names if name.startswith("numpy.random")}
    calls = {
        node.func.id
        for node in nodes(source)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    return sorted(
        f"{module}: {name}" for name in roots | (calls & {*NAMES["impure_calls"]})
    )


@cache
def sources() -> dict[str, str]:
    """Return the source of every module except the package's own."""
    return {
        module_name(path): path.read_text("utf-8")
        for path in FILES
        if path != PACKAGE / "__init__.py"
    }


def test_every_layer_has_a_place():
    """A new layer is entered in the list before anything imports it."""
    layers = {layer(module) for module in sources()}
    assert layers == set(LAYERS)
    assert len(LAYERS) == len(set(LAYERS))


def test_imports_point_up_the_list_only():
    """No layer imports one below it."""
    assert upward_imports(sources()) == []


def test_a_wrong_import_would_be_found():
    """The test above can fail."""
    for module, source in TABLES["wrong_imports"]:
        assert upward_imports({f"dpflow.{module}": source}), source


def circle(sources: dict[str, str]) -> list[str]:
    """Return modules that import each other in a circle, if there are any."""
    graph = {
        module: [
            name
            for name in _modules_imported(source, sources)
            if name != module and (module, name) not in EXCEPTIONS | FOR_TYPES
        ]
        for module, source in sources.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def _modules_imported(source: str, modules: Collection[str]) -> Iterator[str]:
    """Yield what a source imports; of a package, the modules that it names."""
    packages = set()
    for node in nodes(source):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (name := f"{node.module}.{alias.name}") in modules:
                    packages.add(node.module)
                    yield name
    yield from set(imports(source)) - packages


def test_no_modules_import_each_other():
    """There is no circle of imports, and one would be found."""
    assert circle(sources()) == []
    wrong = {"dpflow.a": "from dpflow import b", "dpflow.b": "import dpflow.a"}
    assert circle(wrong)


def test_modules_are_loaded_by_name_in_known_places_only():
    """Everywhere else the imports are what the source says."""
    modules = {
        module_name(path)
        for path in FILES
        for node in nodes(path.read_text("utf-8"))
        if isinstance(node, ast.Call) and _loads_by_name(node)
    }
    assert modules == {*TABLES["loaders"]}


def modules_with_internals(sources: dict[str, str]) -> set[str]:
    """Return the modules that import internals of Prefect."""
    internals = tuple(NAMES["internals"])
    return {
        module
        for module, source in sources.items()
        if any(name.startswith(internals) for name in imports(source))
    }


def test_one_module_knows_the_internals_of_prefect():
    """A class that Prefect renames is mended in one file."""
    assert modules_with_internals(sources()) == {"dpflow.prefect.api"}
    source = "def f():\n    from prefect.context import FlowRunContext"
    assert modules_with_internals({"dpflow.a": source}) == {"dpflow.a"}


def test_accounting_is_pure():
    """Nothing outside a tally can move a bound; an impurity would be named."""
    maths = [m for m in sources() if m.split(".")[1] in ("accounting", "rounding")]
    assert len(maths) > 5
    named = [line for m in maths for line in impurities(m, sources()[m])]
    assert named == TABLES["impurities"]
    for source in TABLES["wrong_maths"]:
        assert impurities("dpflow.accounting.bad", source)


def compared_names(module: str, source: str) -> list[str]:
    """Return the theorems whose names a source outside of `accounting` compares."""
    names = [
        constant.value
        for node in nodes(source)
        if isinstance(node, ast.Compare | ast.match_case)
        for part in ast.iter_child_nodes(node)
        for constant in ast.walk(part)
        if isinstance(node, ast.Compare) or part is node.pattern
        if isinstance(constant, ast.Constant)
    ]
    outside = not module.startswith("dpflow.accounting")
    return [name for name in names if outside and name in {*FILTERS, *ODOMETERS}]


def test_rules_speak_for_themselves():
    """Nothing but `accounting` decides by a theorem's name."""
    assert [each for pair in sources().items() for each in compared_names(*pair)] == []
    for source in TABLES["wrong_names"]:
        assert compared_names("dpflow.forecast.bad", source) == ["gdp"]


def impure_decisions(module: str, source: str) -> list[str]:
    """Return what a decision must not have: anything that is not in its arguments."""
    faults = [each for each in impurities(module, source) if "hashlib" not in each]
    for name in imports(source):
        root = layer(name) if name.startswith("dpflow.") else ""
        inside = root in DECIDING | SCHEMA
        if root == "config" or (root.startswith("ledger") and not inside):
            faults.append(f"{module} imports {name}")
    return faults


def test_decisions_do_no_input_or_output():
    """No clock, database, environment or chance: what they need comes with them."""
    deciding = [m for m in sources() if layer(m) in DECIDING]
    assert len(deciding) > 7
    assert [line for m in deciding for line in impure_decisions(m, sources()[m])] == []
    for source in TABLES["wrong_decisions"]:
        assert impure_decisions("dpflow.ledger.decisions.bad", source)


def test_the_meaning_of_a_journal_needs_the_standard_library_only():
    """An auditor reads it without dpflow and what dpflow needs."""
    for module, source in sources().items():
        if layer(module) in READING | SCHEMA:
            foreign = {*imports(source)} - {*NAMES["standard"]}
            assert all(name.startswith("dpflow.") for name in foreign), module
            assert {*map(layer, foreign)} <= READING | SCHEMA


def hidden_imports(module: str, source: str) -> list[str]:
    """Return what a source of another package imports of the ledger's inside."""
    if module.startswith("dpflow.ledger"):
        return []
    exported = {f"dpflow.ledger.{name}" for name in dpflow.ledger.__all__}
    exported |= {f"dpflow.{name}" for name in NAMES["face"]}
    names = [name for name in imports(source) if name.startswith("dpflow.ledger.")]
    for node in nodes(source):
        if isinstance(node, ast.ImportFrom) and node.module == "dpflow.ledger":
            names += [f"dpflow.ledger.{alias.name}" for alias in node.names]
    return [
        f"{module} imports {name}"
        for name in names
        if not {name, *(name.rsplit(".", n)[0] for n in (1, 2))} & exported
    ]


def test_other_packages_import_the_face_of_the_ledger_only():
    """Its inside may change without them."""
    hidden = [e for m, s in sources().items() for e in hidden_imports(m, s)]
    # It replaces what decides, for tests of pipelines.
    assert hidden == ["dpflow.testing.ledger imports dpflow.ledger.decisions"]
    for source in TABLES["wrong_insides"]:
        assert hidden_imports("dpflow.show.bad", source)
    assert not hidden_imports("dpflow.show.fine", "from dpflow.ledger import Term")


def test_prefect_is_imported_in_its_package_only():
    """Its import costs seconds, and the guard works without it."""
    modules = [m for m, source in sources().items() if imports_prefect(source)]
    assert {layer(module) for module in modules} == {"prefect"}
    assert imports_prefect("from prefect.states import State")


#: Imports modules, one after the other; prints what is loaded after each.
LOADED = """
import json, sys
from importlib import import_module
loaded = []
for module in sys.argv[1:]:
    import_module(module)
    loaded.append(sorted({name.split(".")[0] for name in sys.modules}))
print(json.dumps(loaded))
"""


def test_importing_costs_little():
    """The package, its command line and the guard load no library that may not be used.

    Code without Prefect does not pay for it; its layer asks forecasts, too.
    """
    light = ("dpflow", "dpflow.cli")
    others = ("dpflow.guard.plain", "dpflow.forecast", "dpflow.show.figures")
    loaded = run_python(LOADED, *light, *others)
    assert {*loaded[1]}.isdisjoint(NAMES["heavy"])
    assert {*loaded[-1]}.isdisjoint(NAMES["drawing"])


def changeable(source: str) -> set[str]:
    """Return the dataclasses of a source whose fields may be assigned later."""
    marks = {
        (node.name, ast.unparse(mark))
        for node in nodes(source)
        if isinstance(node, ast.ClassDef)
        for mark in node.decorator_list
    }
    return {
        name
        for name, mark in marks
        if mark.startswith("dataclass") and "frozen=True" not in mark
    }


def test_records_are_values():
    """What is decided, charged and shown is not changed later, but for a few notes."""
    assert changeable("@dataclass(frozen=False)\nclass Price: pass") == {"Price"}
    found = set().union(*(changeable(source) for source in sources().values()))
    assert found == {*NAMES["changeable"]}


def test_files_are_small_and_finished():
    """At most 500 lines, documented, and without notes to oneself."""
    for path in FILES:
        text = path.read_text("utf-8")
        assert len(text.splitlines()) <= 500, path
        assert ast.get_docstring(ast.parse(text)) or not text, path
        words = r"\b(?:TODO|FIXME|XXX|HACK|NotImplementedError)\b"
        assert re.findall(words, text) == [], path


def plain_handlers(source: str) -> list[str]:
    """Return what a source handles although a signal's handler may have raised it."""
    found, plain = [], {*NAMES["plain"]}
    for node in nodes(source):
        if isinstance(node, ast.ExceptHandler) and node.type is not None:
            handled = ast.unparse(node.type)
            kinds = {*re.findall(r"\w+", handled)} & {*dir(builtins)} - plain
            marked = handled.startswith("without_interrupts(")
            found += [handled] if kinds and not marked else []
        elif isinstance(node, ast.ImportFrom) and node.module == "contextlib":
            names = {alias.name for alias in node.names}
            found += sorted(names & {"suppress", "contextmanager"})
    return found


@pytest.mark.promise("interrupt")
def test_interrupts_pass_every_except_of_a_step():
    """What handles built-in errors leaves out those of a signal's handler."""
    assert plain_handlers("try: pass\nexcept (X, OSError): pass") == ["(X, OSError)"]
    assert plain_handlers("from contextlib import suppress") == ["suppress"]
    found = {
        module: plain_handlers(path.read_text("utf-8"))
        for path in FILES
        if (module := module_name(path)) not in ("dpflow", "dpflow.interrupts")
        and layer(module) not in NAMES["outside_of_steps"]
    }
    assert {module: lines for module, lines in found.items() if lines} == {}
