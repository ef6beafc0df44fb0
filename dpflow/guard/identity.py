"""The function that a release belongs to: its file and its qualified name.

A module has several names: `__main__`, `report`, a hash of Prefect's loader. Its file
below the project's root has one, in every clone.
"""

from __future__ import annotations

import inspect
import os
import sys
import weakref
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from types import BuiltinFunctionType
from typing import Any, NamedTuple

from dpflow.accounting.costs.base import Cost
from dpflow.exceptions import ConfigurationError, ReleaseError, ReservationConflict
from dpflow.guard.functions import layers, list_held_values
from dpflow.guard.project import Project
from dpflow.guard.step import Step, StepCall
from dpflow.ledger.codec import encode
from dpflow.ledger.requests import describe_cost
from dpflow.ledger.views.releases import has_release

#: How many release keys of a process are compared with one another.
_MOST_KEYS = 10_000
#: What tells two results of one decorator apart as it is; else its code or type does.
_PLAIN = (str, bytes, int, float, type, BuiltinFunctionType)


class Maker(NamedTuple):
    """The function behind a release.

    Attributes:
        function: Its file below the root and its qualified name, as in
            `flows/report.py:count`; of an installed package the module.
        receiver: The same of the class of `self` or `cls`, where that is a subclass.
    """

    function: str
    receiver: str = ""

    def __str__(self) -> str:
        return " of ".join(filter(None, self))

    def before_move(self, function: str) -> Maker:
        """Return the maker that this one was when its function had another name."""
        new, old = (text.rpartition(":")[0] for text in (self.function, function))
        file, _, name = self.receiver.rpartition(":")
        return Maker(function, f"{old}:{name}" if file == new != "" else self.receiver)


def maker_of(function: Callable[..., Any], receiver: object, root: Path) -> Maker:
    """Return the identity of a step's function.

    Args:
        function: The function, with its decorators.
        receiver: The instance or class that a method is called on; None without one.
        root: The root of the project.
    """
    inner: Any = layers(function)[-1]
    name = _name_by_file(inner if hasattr(inner, "__qualname__") else type(inner), root)
    cls = receiver if isinstance(receiver, type) else type(receiver)
    its_class = "" if receiver is None else _name_by_file(cls, root)
    return Maker(name, "" if its_class == name.rpartition(".")[0] else its_class)


def _name_by_file(definition: Any, root: Path) -> str:
    """Name a function or class by its file; without one by its qualified name."""
    name, module = definition.__qualname__, str(definition.__module__)
    # A class that was sent to a worker knows its module by another name.
    inside = (
        vars(definition).values() if isinstance(definition, type) else (definition,)
    )
    codes = [getattr(layers(value)[-1], "__code__", None) for value in inside]
    files = [c.co_filename for c in codes if c and c.co_qualname.startswith(name)]
    files.append(getattr(sys.modules.get(module), "__file__", None) or "")
    home = _home(files[0], module, root)
    return f"{home}:{name}" if home else name


@lru_cache(maxsize=1024)
def _home(file: str, module: str, root: Path) -> str:
    """Return a file below the root, or the module of an installed one; else ""."""
    path, base = (Path(os.path.realpath(name)) for name in (file, root))
    if {"site-packages", "dist-packages"} & {*path.parts}:
        return module
    is_ours = path.is_file() and path.is_relative_to(base)
    return path.relative_to(base).as_posix() if is_ours else ""


#: The last function of this process that asked for each release key, and its load.
_asked: dict[str, tuple[weakref.ref[Any], Any, Maker]] = {}


def other_maker(key: str, step: Step, makers: tuple[Maker, ...]) -> Maker | None:
    """Return the function that requested a release key before, if it is another one.

    A later definition under one name of a module replaces the earlier one: an edited
    cell of a notebook, or a module that was loaded again. So does one where the earlier
    can be called no more.

    Args:
        key: The keyed digest of the release key.
        step: The step that requests it now, with its function and its load.
        makers: Its identity, and those that it had before it was moved.
    """
    reference, load, before = _asked.get(key, (None, None, makers[0]))
    other = reference and reference()
    if other is None or before in makers[1:]:
        return None
    is_moved = other is not step.body and before != makers[0]
    # A load that was added or removed reads what the function read.
    loaded = load and load()
    is_other_load = loaded and step.load and _differ(loaded, step.load)
    return before if is_moved or is_other_load or _differ(other, step.body) else None


def note_maker(key: str, step: Step, maker: Maker) -> None:
    """Note the function that asks for a release key."""
    if len(_asked) >= _MOST_KEYS:
        _asked.clear()
    load = step.load and weakref.ref(step.load)
    _asked[key] = weakref.ref(step.body), load, maker


def _differ(other: Any, function: Any) -> bool:
    """Return whether a function is not another one, nor a newer definition of it."""
    is_replaced = _has_name(function, own=True) and not _has_name(other, own=False)
    is_same = other is function or is_replaced
    return not is_same and _code(other) != _code(function)


def _code(function: Any) -> list[object]:
    """Return what tells functions of one name apart: their code and decorators."""
    *around, inner = layers(function)
    held = [value for layer in around for value in list_held_values(layer)]
    held += filter(callable, list_held_values(inner))
    return [_sketch(layer) for v in (function, *held) for layer in layers(v)]


def _sketch(value: Any) -> object:
    code = getattr(value, "__code__", None)
    if code is not None:
        return code.replace(co_firstlineno=1)
    return value if isinstance(value, _PLAIN) else type(value)


def _has_name(function: Any, *, own: bool) -> bool:
    """Return whether its module has a function under its own name, or another one."""
    inner: Any = layers(function)[-1]
    member: Any = sys.modules.get(str(inner.__module__))
    values = [v for n, v in vars(member or object).items() if n[:1] != "_"]
    if own:
        for name in getattr(inner, "__qualname__", "").split("."):
            member = inspect.getattr_static(member, name, None)
        values = [member]
    return any(callable(v) and layers(v)[-1] is inner for v in values)


def find_release_key(
    step: Step,
    call: StepCall,
    charged: tuple[Cost, list[str]],
    project: Project,
    run: str | None,
) -> tuple[str | None, dict[str, str]]:
    """Return the digest of the release key, and the step's function by its digests.

    Under a former name of the step, if there is a release.

    Args:
        step: The declaration of the step's author.
        call: The arguments of a call.
        charged: Its cost, and the versions of the data.
        project: The project that is charged.
        run: The flow run around the call, if there is one.

    Raises:
        ReservationConflict: If another function requested the release.
    """
    cost, versions = charged
    if call.key is None and (run is None or not step.replays):
        return None, {}
    digests = project.ledger.digests
    root = project.settings.root
    own = maker_of(step.body, call.receiver, root)
    loaded = [maker_of(step.load, None, root).function] if step.load else []
    makers = own, *map(own.before_move, step.moved_from)

    def key_of(name: str, maker: Maker) -> str:
        parts = [list(step.datasets), versions, name]
        parts += [call.partitions] if call.partitions else []
        if call.key is not None:
            return digests.of("named", *parts, call.key)
        what = [describe_cost(cost), _encode_arguments(step, call.public)]
        return digests.of("run", *parts, run, maker.function, *loaded, *what)

    key = key_of(step.name, own)
    for maker in makers[1:]:
        former = maker.function.rpartition(":")[2].rpartition(".")[2]
        keys = (key, key_of(step.name, maker), key_of(former, maker))
        key = next((k for k in keys if has_release(project.ledger, k)), key)
    other = None if step.fresh else other_maker(key, step, makers)
    if other is not None and has_release(project.ledger, key):
        theirs = repr(str(other)) if other != own else "one of this name and other code"
        msg = (
            f"the release of step {step.name!r} belongs to another function: {theirs}, "
            f"and not {str(own)!r}. Give each its own release_key= or name=; after a "
            f"move say moved_from={other.function!r}. The step did not run."
        )
        raise ReservationConflict(msg, release_key=call.key)
    note_maker(key, step, own)
    texts = {digests.of("function", key, *maker): str(maker) for maker in makers}
    return key, texts


def _encode_arguments(step: Step, public: Mapping[str, Any]) -> dict[str, str]:
    """Encode the public arguments, which identify a release within a flow run."""
    texts = {}
    for name, value in public.items():
        try:
            texts[name] = encode(value)
        except ReleaseError as error:
            kind = error.details.get("type", type(value).__name__)
            msg = (
                f"argument {name!r} of step {step.name!r} cannot identify a release: "
                f"it holds a value of type {kind}. Mark it private=({name!r},), or "
                "give a release_key over the other arguments."
            )
            raise ConfigurationError(msg) from error
    return texts
