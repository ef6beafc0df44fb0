"""Figure of the packages in the page on the architecture, drawn from the imports."""

from __future__ import annotations

import ast
import sys
from graphlib import TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "dpflow"


def packages() -> dict[str, Path]:
    """Return every package, by name: a package, or a file beside `__init__.py`."""
    files = {path.stem: path for path in PACKAGE.glob("[a-z]*.py")}
    packages = {path.parent.name: path for path in PACKAGE.glob("[a-z]*/__init__.py")}
    return files | packages


def imported(package: str, path: Path) -> set[str]:
    """Return the packages that a package imports from, without itself."""
    sources = path.parent.rglob("*.py") if path.name == "__init__.py" else [path]
    nodes = [node for each in sources for node in ast.walk(ast.parse(each.read_text()))]
    names = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    names |= {
        a.name for node in nodes if isinstance(node, ast.Import) for a in node.names
    }
    found = {name.split(".")[1] for name in names if name.startswith("dpflow.")}
    return found - {package}


def figure() -> str:
    """Return a line for each package, below all that it imports from."""
    known = packages()
    graph = {name: imported(name, path) for name, path in known.items()}
    order = [
        *TopologicalSorter({r: sorted(graph[r]) for r in sorted(graph)}).static_order()
    ]
    width = max(map(len, order))
    lines = []
    for name in order:
        doc = ast.get_docstring(ast.parse(known[name].read_text())) or ""
        lines.append(f"{name:{width}}  {doc.splitlines()[0]}")
        if graph[name]:
            names = sorted(graph[name], key=order.index)
            lines.append(f"{'':{width}}    from {' '.join(names)}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(figure())
