"""Change single lines of dpflow, and say which change no test notices.

    python -m tools.mutants                 # forty lines, drawn with random.Random(2)
    python -m tools.mutants --lines 10 --seed 5

Each line is drawn from all that compare, decide or compute. The change is made in a
clone of what was committed. First the tests of the line's package run, then all others;
the first one that fails twice is printed. Takes an hour or more on two cores.
"""

# ruff: noqa: T201

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
_SECONDS = 600
_FAILED = ("FAILED", "ERROR")
_OTHER_END = {"min": "max", "max": "min"}
_OPERATORS: dict[type, type] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
}


class Mutant(NamedTuple):
    """A change of one expression.

    Attributes:
        path: The file, relative to the checkout.
        node: The expression.
        text: The expression that replaces it.
    """

    path: Path
    node: ast.expr
    text: str

    def apply(self, source: str) -> str:
        """Return the source of the file with the change."""
        lines = source.encode().splitlines(keepends=True)
        node = self.node
        before = b"".join(lines[: node.lineno - 1])
        start = len(before) + node.col_offset
        end = sum(map(len, lines[: (node.end_lineno or 0) - 1]))
        end += node.end_col_offset or 0
        whole = b"".join(lines)
        return (whole[:start] + f"({self.text})".encode() + whole[end:]).decode()

    def __str__(self) -> str:
        """Return the place and the change in one line."""
        return (
            f"{self.path}:{self.node.lineno}  {ast.unparse(self.node)} -> {self.text}"
        )


def changes_of(node: ast.expr) -> Iterator[str]:
    """Yield expressions that say something else."""
    text = ast.unparse(node)
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _OPERATORS:
        operators = [_OPERATORS[type(node.ops[0])](), *node.ops[1:]]
        yield ast.unparse(ast.Compare(node.left, operators, node.comparators))
    elif isinstance(node, ast.BoolOp):
        yield ast.unparse(ast.BoolOp(_OPERATORS[type(node.op)](), node.values))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield ast.unparse(node.operand)
    elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        operator = _OPERATORS[type(node.op)]()
        yield ast.unparse(ast.BinOp(node.left, operator, node.right))
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield str(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield f"{text} + 1"
    elif isinstance(node, ast.Call) and ast.unparse(node.func) in _OTHER_END:
        name = ast.unparse(node.func)
        yield text.replace(name, _OTHER_END[name], 1)


def find_mutants(root: Path) -> dict[tuple[str, int], list[Mutant]]:
    """Return the possible changes by file and line."""
    found: dict[tuple[str, int], list[Mutant]] = {}
    for file in sorted((root / "dpflow").rglob("*.py")):
        path = file.relative_to(root)
        tree = ast.parse(file.read_text("utf-8"))
        # Annotations of postponed evaluation compute nothing, nor do format strings.
        skipped = {
            id(inner)
            for node in ast.walk(tree)
            for part in (
                getattr(node, "annotation", None),
                getattr(node, "returns", None),
                node if isinstance(node, ast.JoinedStr) else None,
            )
            if part is not None
            for inner in ast.walk(part)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.expr) and id(node) not in skipped:
                for text in changes_of(node):
                    line = str(path), node.lineno
                    found.setdefault(line, []).append(Mutant(path, node, text))
    return found


def draw_mutants(root: Path, lines: int, seed: int) -> list[Mutant]:
    """Draw lines, and one change of each."""
    generator = random.Random(seed)  # noqa: S311 (drawn again by the same seed)
    found = find_mutants(root)
    drawn = generator.sample([*found], lines)
    return [generator.choice(found[line]) for line in drawn]


def tests_of(path: Path) -> list[str]:
    """Return the folders of tests of a file's package."""
    folder = f"tests/{path.parts[1]}"
    folders = [folder, "tests/faults"] if path.parts[1] == "ledger" else [folder]
    return [name for name in folders if (ROOT / name).is_dir()]


def failing_test(copy: Path, *arguments: str) -> str:
    """Return the first test that fails, or takes too long; "" if none does."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    with subprocess.Popen(  # noqa: S603 (our own words)
        [*command, "-n", "2", *arguments],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as tests:
        try:
            output, _ = tests.communicate(timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            # Its workers would go on without it.
            os.killpg(tests.pid, signal.SIGKILL)
            return "a test without an end"
    failed = [line for line in output.splitlines() if line.startswith(_FAILED)]
    return failed[0] if failed else "an error of pytest" if tests.returncode else ""


def main() -> int:
    """Draw, change and test; return 1 if a change was not noticed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=40)
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--skip", type=int, default=0, help="of those that are drawn")
    given = parser.parse_args()
    unnoticed = 0
    with tempfile.TemporaryDirectory() as folder:
        # Some tests run as another user.
        Path(folder).chmod(0o755)
        copy = Path(folder) / "copy"
        command = ["git", "clone", "--quiet", str(ROOT), str(copy)]
        subprocess.run(command, check=True)  # noqa: S603
        for mutant in draw_mutants(copy, given.lines, given.seed)[given.skip :]:
            file = copy / mutant.path
            source = file.read_text("utf-8")
            file.write_text(mutant.apply(source), "utf-8")
            own = tests_of(mutant.path)
            others = ["tests", *(f"--ignore={name}" for name in own)]
            test = (own and failing_test(copy, *own)) or failing_test(copy, *others)
            if place := re.search(r"tests/[^ :]+\.py", test):
                # Not by chance: with the change it fails each time.
                test = failing_test(copy, place[0]) and test
            file.write_text(source, "utf-8")
            print(f"{mutant}\n    {test or 'NOT NOTICED'}", flush=True)
            unnoticed += not test
    print(f"{unnoticed} of {given.lines - given.skip} changes were not noticed")
    return min(unnoticed, 1)


if __name__ == "__main__":
    sys.exit(main())
