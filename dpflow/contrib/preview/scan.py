"""Steps as they stand in Python source, found without running it.

Only what is written out can be read: literals, and names that a module assigns once.
Everything else is said to be computed at run time, never guessed.
"""

from __future__ import annotations

import ast
import copy
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from dpflow.accounting.costs.base import Cost, cost_kind
from dpflow.accounting.costs.text import cost_from_text
from dpflow.contrib.preview.draws import drawn_by_release, draws
from dpflow.exceptions import InvalidCost

_DECORATORS = ("dp_task", "guarded")
_FLOWS = ("dp_flow", "flow")
_WORDS = (*_DECORATORS, "flow", "spend")
_DEPTH = 8
_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
_PACKAGE = "dpflow"
#: What makes an expression depend on more than what is written.
_DYNAMIC = (
    ast.Attribute,
    ast.comprehension,
    ast.IfExp,
    ast.JoinedStr,
    ast.Lambda,
    ast.Name,
    ast.Starred,
    ast.Subscript,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundStep:
    """A step in a source file.

    Attributes:
        name: In the journal.
        function: The body; empty for a block.
        datasets: Empty if they are computed at run time.
        text: The cost as it is written.
        cost: None if it is computed at run time or cannot be read.
        problem: Why a written cost cannot be read.
        release_key: The template; None if there is none or it is computed.
        flows: Flows that call it, as far as the source tells.
        own: Whether it says that its body draws the noise itself.
        undrawn: Whether `release` would draw its cost, and its body is seen to draw
            nothing.
    """

    name: str
    function: str
    file: str
    line: int
    datasets: tuple[str, ...] = ()
    text: str = ""
    cost: Cost | None = None
    problem: str | None = None
    release_key: str | None = None
    flows: tuple[str, ...] = ()
    own: bool = False
    undrawn: bool = False


@dataclass(slots=True)
class Source:
    """What was found in all files of one version of a project.

    Attributes:
        functions: Functions that are no steps, by file and name.
        calls: Names that the body of each flow calls.
        unread: Files that could not be parsed.
    """

    steps: list[FoundStep] = field(default_factory=list)
    functions: set[tuple[str, str]] = field(default_factory=set)
    calls: dict[str, set[str]] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)


def scan(files: Mapping[str, str]) -> Source:
    """Find the steps in Python files.

    Args:
        files: Text by path.
    """
    source = Source()
    for path, text in sorted(files.items()):
        if not any(word in text for word in _WORDS):
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(text)
            _Module(path, tree, source).read()
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            source.unread.append(path)
    source.steps = [_with_flows(step, source) for step in source.steps]
    return source


def _with_flows(step: FoundStep, source: Source) -> FoundStep:
    calling = {flow for flow, names in source.calls.items() if step.function in names}
    flows = tuple(sorted({*step.flows, *calling}))
    return FoundStep(
        **{name: getattr(step, name) for name in step.__slots__ if name != "flows"},
        flows=flows,
    )


class _Module:
    """One file."""

    def __init__(self, path: str, tree: ast.Module, source: Source) -> None:
        self._path, self._tree, self._source = path, tree, source
        self._aliases, self._modules = _aliases(tree), _modules(tree)
        self._foreign = _foreign(tree)
        self._constants = _constants(tree)
        self._decorators: set[int] = set()
        self._bodies = dict(_blocks(tree))
        self._defined: dict[str, ast.AST] = {
            node.name: node for node in ast.walk(tree) if isinstance(node, _FUNCTION)
        }

    def read(self) -> None:
        """Add what the file holds."""
        for node in ast.walk(self._tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self._function(node)
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Call) and id(node) not in self._decorators:
                self._call(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        guarded = False
        for decorator in node.decorator_list:
            call = decorator if isinstance(decorator, ast.Call) else None
            called = self._named(call.func if call else decorator)
            if call is not None and called in _DECORATORS:
                guarded = True
                self._decorators.add(id(call))
                self._add(call, node.name, node.name, node)
            elif called in _FLOWS:
                words = _keywords(call) if call else {}
                named = self._literal(words.get("name"))
                name = named or node.name.replace("_", "-")
                found = self._source.calls.setdefault(name, set())
                found.update(self._called_in(node))
        if not guarded:
            self._source.functions.add((self._path, node.name))

    def _call(self, node: ast.Call) -> None:
        called = self._named(node.func)
        if called == "spend":
            step = self._literal(_keywords(node).get("step"))
            block = self._bodies.get(id(node))
            self._add(node, step or "computed at run time", "", block)
        elif called is None and isinstance(node.func, ast.Call):
            # A decorator that is called by hand.
            inner = node.func
            if self._named(inner.func) in _DECORATORS:
                self._decorators.add(id(inner))
                body = node.args[0] if node.args else None
                name = body.id if isinstance(body, ast.Name) else "lambda"
                seen = body if isinstance(body, ast.Lambda) else self._defined.get(name)
                self._add(inner, name, name, seen)
        elif called in _DECORATORS:
            # A decorator that is kept in a variable.
            self._add(node, "computed at run time", "")

    def _add(
        self, call: ast.Call, name: str, function: str, body: ast.AST | None = None
    ) -> None:
        words = _keywords(call)
        own = self._literal(words.get("noise")) == "own"
        cost, text, problem = self._cost(words.get("cost"))
        flow = self._literal(words.get("flow"))
        self._source.steps.append(
            FoundStep(
                name=self._literal(words.get("name")) or name,
                function=function,
                file=self._path,
                line=call.lineno,
                datasets=self._datasets(words.get("dataset")),
                text=text,
                cost=cost,
                problem=problem,
                release_key=self._literal(words.get("release_key")),
                flows=(flow,) if flow else (),
                own=own,
                undrawn=not own and self._lacks_draw(words.get("cost"), body),
            )
        )

    def _lacks_draw(self, cost: ast.expr | None, body: ast.AST | None) -> bool:
        """Say whether a body that is seen lacks the draw of a cost that is known."""
        if cost is None or body is None:
            return False
        declared = drawn_by_release(self._resolved(cost), self._foreign)
        return declared and not draws(body, self._defined, self._aliases)

    def _cost(self, node: ast.expr | None) -> tuple[Cost | None, str, str | None]:
        if node is None:
            return None, "", None
        text = ast.unparse(node)
        written = ast.unparse(self._resolved(node))
        if not self._is_written_out(ast.parse(written, mode="eval").body):
            return None, text, None
        try:
            cost = cost_from_text(written)
        except InvalidCost as error:
            return None, text, error.message
        return cost, repr(cost), None

    def _is_written_out(self, node: ast.expr) -> bool:
        """Say whether an expression is made of dpflow's costs and of literals."""
        calls = [part for part in ast.walk(node) if isinstance(part, ast.Call)]
        names = [c.func.id if isinstance(c.func, ast.Name) else "" for c in calls]
        called = {id(call.func) for call in calls}
        others = (
            part
            for part in ast.walk(node)
            if isinstance(part, _DYNAMIC) and id(part) not in called
        )
        known = all(_is_cost(name) and name not in self._foreign for name in names)
        return isinstance(node, ast.Call) and known and next(others, None) is None

    def _datasets(self, node: ast.expr | None) -> tuple[str, ...]:
        found = None if node is None else self._resolved(node)
        match found:
            case ast.Constant(value=str(name)):
                return (name,)
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                names = [self._literal(part) for part in parts]
                return tuple(n for n in names if n) if all(names) else ()
        return ()

    def _literal(self, node: ast.expr | None) -> str | None:
        """Return a text that is written out."""
        found = None if node is None else self._resolved(node)
        if isinstance(found, ast.Constant) and isinstance(found.value, str):
            return found.value
        return None

    def _resolved(self, node: ast.expr) -> ast.expr:
        """Put in what names stand for that the module assigns once."""
        return _Names(self._constants, self._aliases, self._modules).resolved(node)

    def _named(self, node: ast.expr) -> str | None:
        """Return what a called name was called where it was defined."""
        if isinstance(node, ast.Attribute):
            return node.attr
        if isinstance(node, ast.Name):
            return self._aliases.get(node.id, node.id)
        return None

    def _called_in(self, node: ast.AST) -> Iterator[str]:
        for part in ast.walk(node):
            if isinstance(part, ast.Call):
                function = part.func
                # Also by way of submit, map and with_options.
                while isinstance(function, ast.Attribute | ast.Call):
                    if isinstance(function, ast.Attribute):
                        function = function.value
                    else:
                        function = function.func
                if isinstance(function, ast.Name):
                    yield self._aliases.get(function.id, function.id)


class _Names(ast.NodeTransformer):
    """Puts constants in the place of their names."""

    def __init__(
        self,
        constants: Mapping[str, ast.expr],
        aliases: Mapping[str, str],
        modules: set[str],
    ) -> None:
        self._constants, self._aliases, self._depth = constants, aliases, 0
        self._modules = modules

    def resolved(self, node: ast.expr) -> ast.expr:
        """Return a copy with every known name resolved."""
        found: ast.expr = self.visit(copy.deepcopy(node))
        return found

    def visit_Call(self, node: ast.Call) -> ast.Call:
        """Leave the name of a cost, without the module that it is taken from."""
        func = node.func
        if isinstance(func, ast.Attribute) and ast.unparse(func.value) in self._modules:
            node.func = ast.Name(func.attr, ast.Load())
        elif isinstance(func, ast.Name):
            node.func = ast.Name(self._aliases.get(func.id, func.id), ast.Load())
        node.args = [self.visit(each) for each in node.args]
        for keyword in node.keywords:
            keyword.value = self.visit(keyword.value)
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Return what a name stands for."""
        known = self._constants.get(node.id)
        if known is None or self._depth >= _DEPTH:
            return node
        self._depth += 1
        found: ast.expr = self.visit(copy.deepcopy(known))
        self._depth -= 1
        return found


def _blocks(tree: ast.Module) -> Iterator[tuple[int, ast.AST]]:
    """Yield each `with` block by the call that it enters."""
    for node in ast.walk(tree):
        if isinstance(node, ast.With | ast.AsyncWith):
            for item in node.items:
                yield id(item.context_expr), node


def _keywords(call: ast.Call) -> dict[str, ast.expr]:
    return {word.arg: word.value for word in call.keywords if word.arg is not None}


def _aliases(tree: ast.Module) -> dict[str, str]:
    """Return what imported names are called where they come from."""
    return {
        alias.asname or alias.name: alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def _modules(tree: ast.Module) -> set[str]:
    """Return the names under which dpflow and its modules were imported."""
    return {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name.partition(".")[0] == _PACKAGE
    }


def _foreign(tree: ast.Module) -> set[str]:
    """Return names that are bound to something that is not dpflow's."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.ImportFrom) and (
            node.level or (node.module or "").partition(".")[0] != _PACKAGE
        ):
            found.update(alias.asname or alias.name for alias in node.names)
    return found


def _is_cost(name: str) -> bool:
    try:
        cost_kind(name)
    except InvalidCost:
        return False
    return True


def _constants(tree: ast.Module) -> dict[str, ast.expr]:
    """Return what the names stand for that are bound once, at the top of the module."""
    bound: dict[str, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            bound[node.id] = bound.get(node.id, 0) + 1
        elif isinstance(node, ast.arg):
            bound[node.arg] = 2
        elif isinstance(node, ast.Global):
            bound.update(dict.fromkeys(node.names, 2))
    found: dict[str, ast.expr] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = node.targets[0], node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            target, value = node.target, node.value
        else:
            continue
        if isinstance(target, ast.Name) and bound.get(target.id) == 1:
            found[target.id] = value
    return found
