"""The definition of a DP step: what its author declares, checked when it is defined."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from dpflow.accounting.costs.base import Cost
from dpflow.accounting.costs.outcomes import OutcomeCost
from dpflow.accounting.costs.planned import PlannedNoise
from dpflow.exceptions import ConfigurationError, require
from dpflow.guard.functions import captured, check_body, is_constant, name_of
from dpflow.guard.release_keys import (
    Untold,
    check_calendars,
    fill,
    has_address,
    identify,
    template_fields,
)
from dpflow.noise.sources import OWN

#: The instance of a method is no public argument.
HIDDEN = frozenset({"self", "cls"})

#: A cost, or a function of the step's public arguments that returns one.
CostLike = Cost | PlannedNoise | Callable[..., Cost | PlannedNoise]
#: Names of partitions: templates over public parameters, or a function of the public
#: arguments that returns names.
PartitionsLike = str | Sequence[str] | Callable[..., Sequence[str]]
#: Names the cell of a cost such as `OutputDP` that an output falls into.
CellLike = Callable[[Any], str | int]
#: Who draws the noise that the cost declares: `release`, or the body itself.
NoiseLike = Literal["release", "own"]
#: What a release does whose step declares another cost now.
OnChange = Literal["replay", "refuse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What the author of a step declares, with the keywords of `guarded`.

    Attributes:
        name: Name in the journal.
        body: The function.
        dataset: Name of the dataset that it reads, or several.
        cost: Worst case, or a function of the public arguments that returns it.
        private: Parameters that hold private data; nothing derived from their values
            is ever journaled, keyed or shown.
        release_key: Template over public parameters, under which the output is kept.
        partitions: Which partitions the body reads, of datasets that have some.
        ignore: Parameters and captured variables on which the kept output does not
            depend.
        on_change: Whether a release that was made at another cost is replayed.
        fresh: Whether every call draws anew, at a charge of its own.
        data_version: Version of the data, where the policy's does not do.
        cell: Function of the output that names the cell of the cost it falls into.
        noise: Who draws the noise: "release", or the body's "own".
        datasets: The datasets whose private data the body reads.
        signature: Of the body.
        source: Module and qualified name of the body, which tell two steps of one
            name apart within a flow run.
        replays: Whether a call is told by its public arguments, so that it may be
            replayed within a flow run. Not if the body closes over variables or is a
            method: what those hold is no argument. Nor if it is a lambda: all have
            one name.

    Raises:
        ConfigurationError: If something declared cannot work.
    """

    name: str
    body: Callable[..., Any] = field(repr=False, compare=False)
    dataset: str | tuple[str, ...]
    cost: CostLike
    private: frozenset[str] = frozenset()
    release_key: str | None = None
    ignore: frozenset[str] = frozenset()
    on_change: OnChange = "replay"
    partitions: tuple[str, ...] | Callable[..., Sequence[str]] | None = None
    fresh: bool = False
    data_version: str | None = None
    cell: CellLike | None = None
    noise: NoiseLike = "release"
    datasets: tuple[str, ...] = field(init=False)
    signature: inspect.Signature = field(init=False)
    source: str = field(init=False)
    replays: bool = field(init=False)

    def __post_init__(self) -> None:
        """Read and check what was declared."""
        body = self.body
        signature = inspect.signature(body)
        # A worker that was spawned knows the main module by another name.
        module = str(getattr(body, "__module__", "")).replace("__mp_main__", "__main__")
        own = inspect.isfunction(body) and body.__name__ != "<lambda>"
        hidden = getattr(body, "__closure__", None) or HIDDEN & {*signature.parameters}
        declared = parts = self.partitions
        if declared is not None and not callable(declared):
            parts = _names(declared)
        values = {
            "datasets": _names(self.dataset),
            "signature": signature,
            "private": frozenset(_names(self.private) or self.private),
            "ignore": frozenset(_names(self.ignore) or self.ignore),
            "partitions": parts,
            "source": f"{module}.{getattr(body, '__qualname__', '')}",
            "replays": own and not hidden,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        for keyword in ("name", "release_key", "data_version"):
            if (text := getattr(self, keyword)) is not None:
                checked_text(text, keyword)
        checked_flag(self.fresh, "fresh")
        require(
            declared is None or parts,
            f"step {self.name!r} takes partitions= as names, templates such as "
            f"'{{week}}', or a function of its public arguments, got {declared!r}",
        )
        _check(self)

    def ask(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> StepCall:
        """Return what a call asks for: cost, partitions, key and version.

        Raises:
            ConfigurationError: If a function or a template of the step has no answer
                for the public arguments.
        """
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        values = {**captured(self.body), **bound.arguments}
        values = {k: v for k, v in values.items() if k not in self.private}
        names = self.signature.parameters.keys() - HIDDEN
        public = {name: value for name, value in values.items() if name in names}
        key = self.release_key
        return StepCall(
            cost=self._cost(public),
            partitions=self._touched(values, public),
            key=None if key is None else self._filled("release_key", key, values),
            texts={} if key is None else self._texts(key, values, public),
            version=self.data_version,
            public=public,
        )

    def _cost(self, public: Mapping[str, Any]) -> Cost | PlannedNoise:
        if isinstance(self.cost, Cost | PlannedNoise):
            return self.cost
        cost: object = self._called("cost", self.cost, public)
        if isinstance(cost, Cost | PlannedNoise):
            return cost
        msg = (
            f"the cost function of step {self.name!r} returned {cost!r}; it must "
            "return a cost such as Gaussian(...). The step did not run."
        )
        raise ConfigurationError(msg)

    def _touched(
        self, values: Mapping[str, Any], public: Mapping[str, Any]
    ) -> tuple[str, ...]:
        if not self.partitions:
            return ()
        if callable(self.partitions):
            names = self._called("partitions", self.partitions, public)
        else:
            names = [self._filled("partitions", t, values) for t in self.partitions]
        texts = names if isinstance(names, list | tuple) else ()
        require(
            texts and all(isinstance(name, str) and name for name in texts),
            f"the partitions of step {self.name!r} must be one or more names, got "
            f"{names!r:.80}. The step did not run.",
        )
        require(
            len(set(texts)) == len(texts),
            f"step {self.name!r} names a partition twice: {names!r:.80}",
        )
        return tuple(texts)

    def _called(
        self, what: str, function: Callable[..., Any], public: Mapping[str, Any]
    ) -> Any:
        """Call a function of the public arguments."""
        try:
            parameters = inspect.signature(function).parameters.values()
            if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
                names = [p.name for p in parameters if p.name in public]
                public = {name: public[name] for name in names}
            return function(**public)
        except Exception as error:
            msg = (
                f"the {what} function of step {self.name!r} raised "
                f"{type(error).__name__}: {error}. It must have an answer for every "
                "public argument. The step did not run."
            )
            raise ConfigurationError(msg) from error

    def _texts(
        self, key: str, values: Mapping[str, Any], public: Mapping[str, Any]
    ) -> dict[str, str | None]:
        """Return the text of each argument; of instance and captured ones by field."""
        names = [*public]
        names += [field for field in template_fields(key) if _root(field) not in names]
        read = [name for name in names if _root(name) not in self.ignore]
        with self._fitting("release_key", key):
            return {**dict.fromkeys(names), **identify(read, key, values)}

    def _filled(self, keyword: str, template: str, values: Mapping[str, Any]) -> str:
        """Fill a template with the arguments."""
        with self._fitting(keyword, template):
            return fill(template, values)

    @contextmanager
    def _fitting(self, keyword: str, template: str) -> Iterator[None]:
        """Say in one error that a template does not fit the arguments."""
        try:
            yield
        except Exception as error:
            why = f" does not fit its arguments ({type(error).__name__}: {error})"
            if isinstance(error, Untold):
                why = f": {error}"
            msg = (
                f"{keyword} {template!r} of step {self.name!r}{why}. The step did not "
                "run."
            )
            raise ConfigurationError(msg) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCall:
    """What one call of a step asks for.

    Attributes:
        cost: The worst case.
        partitions: Names of the partitions that the body reads.
        key: The release key, if the step has one.
        texts: Under a release key, the text that tells each argument from others; None
            of an argument that is ignored.
        version: Version of the data, if the step names one.
        public: The public arguments by name.
    """

    cost: Cost | PlannedNoise
    partitions: tuple[str, ...]
    key: str | None
    texts: Mapping[str, str | None]
    version: str | None
    public: Mapping[str, Any]


def define_step(
    function: Callable[..., Any], *, name: str | None = None, **declared: Any
) -> Step:
    """Return the step that the keywords of `guarded` declare.

    Raises:
        ConfigurationError: If something declared cannot work.
    """
    check_body(function)
    title = name_of(function) if name is None else name
    return Step(body=function, name=title, **declared)


def _names(names: object) -> tuple[str, ...]:
    if isinstance(names, str):
        return (names,)
    return tuple(names) if isinstance(names, list | tuple) else ()


def _check(step: Step) -> None:
    """Refuse declarations that cannot work.

    Raises:
        ConfigurationError: If there is one.
    """
    title, cost, cell = f"step {step.name!r}", step.cost, step.cell
    require(
        step.datasets and all(isinstance(each, str) and each for each in step.datasets),
        f"{title} needs dataset=: the name of a dataset, got {step.dataset!r}",
    )
    require(
        not has_address(step.name),
        f"{title} describes an object by its address, and another one gets that later. "
        "Name the step by what it does",
    )
    require(
        not inspect.isgeneratorfunction(step.body)
        and not inspect.isasyncgenfunction(step.body),
        f"{title} is a generator: an abandoned one is recorded as completed. Return "
        "the whole output, or make each part a step of its own.",
    )
    require(
        len(set(step.datasets)) == len(step.datasets),
        f"{title} names a dataset twice: {step.datasets!r}; name each once",
    )
    is_cost = isinstance(cost, Cost | PlannedNoise)
    require(
        is_cost or callable(cost),
        f"{title} needs cost=: a cost such as Gaussian(sensitivity=1, sigma=20), or a "
        f"function that returns one, got {cost!r}",
    )
    unknown = step.private.difference(step.signature.parameters)
    require(
        not unknown,
        f"{title} has no parameter {next(iter(unknown), '')!r} to be private; its "
        f"parameters: {', '.join(step.signature.parameters) or 'none'}",
    )
    require(
        cell is None or (callable(cell) and not inspect.iscoroutinefunction(cell)),
        f"{title} takes cell= as a function of its output that returns the name of a "
        f"cell, got {cell!r}",
    )
    require(
        cell is None or isinstance(cost, OutcomeCost) or not is_cost,
        f"{title} declares cell=, but {cost!r} has no cells; declare "
        'OutputDP({"none": ..., "answer": ...})',
    )
    require(
        step.noise in ("release", OWN),
        f'{title} takes noise="release" (the default), or noise="own" if its body '
        f"draws the noise that its cost declares by itself, got {step.noise!r}",
    )
    for template in () if callable(step.partitions) else step.partitions or ():
        check_template(step, "partitions", checked_text(template, "partitions"))
    if step.release_key is not None:
        check_template(step, "release_key", step.release_key)
    _check_key(step)


def _root(field: str) -> str:
    return field.split(".", maxsplit=1)[0].split("[", maxsplit=1)[0]


def _check_key(step: Step) -> None:
    """Check that a release key speaks of all that the output may depend on.

    Raises:
        ConfigurationError: If it does not, and `ignore` does not name the rest.
    """
    values = {**captured(step.body), **step.signature.parameters}
    names = [name for name in values if name not in step.private]
    unknown = step.ignore.difference(names if step.release_key else ())
    require(
        not unknown and step.on_change in {"replay", "refuse"},
        f'step {step.name!r} takes on_change="replay" (the default) or "refuse", and '
        "ignore= as names that its release_key could read: "
        f"{', '.join(names) or 'none'}; got {step.on_change!r}, {sorted(unknown)}",
    )
    read = {*map(_root, template_fields(step.release_key or "")), *step.ignore}
    for name in names if step.release_key else ():
        field = f"{name}.region" if name in HIDDEN else name
        require(
            name in read or is_constant(values[name]),
            f"release_key {step.release_key!r} of step {step.name!r} reads nothing of "
            f"{name!r}, so that a call with another one would get this one's release. "
            f'Write a field such as "{{{field}}}" into it, or ignore=({name!r},) if '
            "the output does not depend on it",
        )


@lru_cache(maxsize=1024)
def returned_type(body: Callable[..., Any]) -> object:
    """Return what a body says that it returns; `object` if it says nothing."""
    try:
        signature = inspect.signature(body, eval_str=True)
    # A name may be known to type checkers only.
    except Exception:  # noqa: BLE001
        return object
    said = signature.return_annotation
    return object if said is inspect.Signature.empty else said


def checked_text(value: object, name: str) -> str:
    """Return a text that is not empty, or say which keyword is wrong.

    Raises:
        ConfigurationError: If it is anything else.
    """
    text = value if isinstance(value, str) else ""
    require(text, f"{name}= takes a text that is not empty, got {value!r}")
    return text


def checked_flag(value: object, name: str) -> bool:
    """Return a truth value, or say which keyword is wrong.

    Raises:
        ConfigurationError: If it is anything else.
    """
    require(isinstance(value, bool), f"{name}= takes True or False, got {value!r}")
    return value is True


def check_template(step: Step, keyword: str, template: str) -> None:
    """Check that a template speaks of public parameters only.

    Those of a step itself may read its instance and what its body captures, too.

    Raises:
        ConfigurationError: If it does not.
    """
    ours = keyword in ("release_key", "partitions")
    hidden = step.private if ours else step.private | HIDDEN
    names = [*(captured(step.body) if ours else ()), *step.signature.parameters]
    public = [name for name in names if name not in hidden]
    title = f"{keyword} {template!r} of step {step.name!r}"
    try:
        fields = list(template_fields(template))
        check_calendars(template)
    except ValueError as error:
        msg = f"{title}: {error}"
        raise ConfigurationError(msg) from error
    for name in fields:
        require(
            _root(name) in public,
            f"{title} speaks of {name!r}; it may use only the public parameters: "
            f"{', '.join(public) or 'there are none'}",
        )
