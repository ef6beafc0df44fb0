"""The definition of a DP step: what its author declares, checked when it is defined."""

from __future__ import annotations

import inspect
import string
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dpflow.accounting.costs import Cost
from dpflow.exceptions import ConfigurationError

#: The instance of a method is no public argument.
_HIDDEN = frozenset({"self", "cls"})

#: A cost, or a function of the step's public arguments that returns one.
CostLike = Cost | Callable[..., Cost]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What the author of a step declares.

    Attributes:
        name: Name in the journal.
        datasets: The datasets whose private data the body reads.
        cost: Worst case, or a function of the public arguments that returns it.
        signature: Of the body.
        private: Parameters that hold private data; nothing derived from their values
            is ever journaled, keyed or shown.
        release_key: Template over public parameters, under which the output is kept.
        version: Version of the data, where the policy's does not do.
        replays: Whether a call is told by its public arguments, so that it may be
            replayed within a flow run. Not if the body closes over variables or is a
            method: what those hold is no argument.
        source: Module and qualified name of the body, which tell two steps of one
            name apart within a flow run.
    """

    name: str
    datasets: tuple[str, ...]
    cost: CostLike
    signature: inspect.Signature
    private: frozenset[str] = frozenset()
    release_key: str | None = None
    version: str | None = None
    source: str = ""
    replays: bool = True

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the public arguments by name, defaults included."""
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        hidden = self.private | _HIDDEN
        return {k: v for k, v in bound.arguments.items() if k not in hidden}

    def price(self, public: Mapping[str, Any]) -> Cost:
        """Return the worst case for these public arguments.

        Raises:
            ConfigurationError: If the cost function raises, asks for something that
                is no public argument, or returns no cost.
        """
        if isinstance(self.cost, Cost):
            return self.cost
        try:
            cost = self.cost(**self._arguments_of(self.cost, public))
        except Exception as error:
            msg = (
                f"the cost function of step {self.name!r} raised "
                f"{type(error).__name__}: {error}. It must return a cost for every "
                "public argument. The step did not run."
            )
            raise ConfigurationError(msg) from error
        if not isinstance(cost, Cost):
            msg = (
                f"the cost function of step {self.name!r} returned {cost!r}; it must "
                "return a cost such as Gaussian(...). The step did not run."
            )
            raise ConfigurationError(msg)
        return cost

    def _arguments_of(
        self, function: Callable[..., Cost], public: Mapping[str, Any]
    ) -> dict[str, Any]:
        parameters = inspect.signature(function).parameters.values()
        if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
            return dict(public)
        return {p.name: public[p.name] for p in parameters if p.name in public}

    def key_text(self, public: Mapping[str, Any]) -> str | None:
        """Return the release key for these public arguments, if the step has one.

        Raises:
            ConfigurationError: If the template does not fit the arguments.
        """
        if self.release_key is None:
            return None
        try:
            return self.release_key.format(**public)
        except Exception as error:
            msg = (
                f"release_key {self.release_key!r} of step {self.name!r} does not fit "
                f"its arguments ({type(error).__name__}: {error}). The step did not "
                "run."
            )
            raise ConfigurationError(msg) from error


def define_step(
    function: Callable[..., Any],
    *,
    dataset: str | tuple[str, ...],
    cost: CostLike,
    private: tuple[str, ...] = (),
    release_key: str | None = None,
    version: str | None = None,
    name: str | None = None,
) -> Step:
    """Check what the author of a step declares.

    Args:
        function: The body.
        dataset: Name of the dataset it reads, or several.
        cost: Its worst case, or a function of its public arguments.
        private: Names of parameters that hold private data.
        release_key: Template over public parameters, such as "revenue/{week}".
        version: Version of the data; default: the policy's.
        name: Default: the function's name.

    Raises:
        ConfigurationError: If something declared cannot work.
    """
    title = _checked_name(function, name)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        msg = (
            f"step {title!r} is a generator: an abandoned one is recorded as "
            "completed. Return the whole output, or make each part a step of its own."
        )
        raise ConfigurationError(msg)
    signature = inspect.signature(function)
    datasets = _checked_datasets(title, dataset)
    if not isinstance(cost, Cost) and not callable(cost):
        msg = (
            f"step {title!r} needs cost=: a cost such as Gaussian(sensitivity=1, "
            f"sigma=20), or a function that returns one, got {cost!r}"
        )
        raise ConfigurationError(msg)
    step = Step(
        name=title,
        datasets=datasets,
        cost=cost,
        signature=signature,
        private=_checked_private(title, signature, private),
        release_key=_optional_text(release_key, "release_key"),
        version=_optional_text(version, "version"),
        source=_source(function),
        replays=not (function.__closure__ or _HIDDEN & set(signature.parameters))
        if inspect.isfunction(function)
        else False,
    )
    _check_template(step)
    return step


def checked_text(value: object, name: str) -> str:
    """Return a text that is not empty, or say which keyword is wrong.

    Raises:
        ConfigurationError: If it is anything else.
    """
    if not isinstance(value, str) or not value:
        msg = f"{name}= takes a text that is not empty, got {value!r}"
        raise ConfigurationError(msg)
    return value


def _optional_text(value: object, name: str) -> str | None:
    return None if value is None else checked_text(value, name)


def _checked_name(function: Callable[..., Any], name: str | None) -> str:
    if not callable(function):
        msg = f"a DP step is made of a function, got {function!r}"
        raise ConfigurationError(msg)
    if name is None:
        name = getattr(function, "__name__", None)
    return checked_text(name, "name")


def _source(function: Callable[..., Any]) -> str:
    # A worker that was spawned knows the main module by another name.
    module = str(getattr(function, "__module__", "")).replace("__mp_main__", "__main__")
    return f"{module}.{getattr(function, '__qualname__', '')}"


def _checked_datasets(title: str, dataset: object) -> tuple[str, ...]:
    found = (dataset,) if isinstance(dataset, str) else dataset
    names = tuple(found) if isinstance(found, tuple | list) else ()
    if not names or not all(isinstance(name, str) and name for name in names):
        msg = f"step {title!r} needs dataset=: the name of a dataset, got {dataset!r}"
        raise ConfigurationError(msg)
    if len(set(names)) != len(names):
        msg = f"step {title!r} names a dataset twice: {dataset!r}; name each once"
        raise ConfigurationError(msg)
    return names


def _checked_private(
    title: str, signature: inspect.Signature, private: tuple[str, ...]
) -> frozenset[str]:
    names = (private,) if isinstance(private, str) else tuple(private)
    for name in names:
        if name not in signature.parameters:
            known = ", ".join(signature.parameters) or "none"
            msg = (
                f"step {title!r} has no parameter {name!r} to be private; its "
                f"parameters: {known}"
            )
            raise ConfigurationError(msg)
    return frozenset(names)


def _check_template(step: Step) -> None:
    """Check that a release key speaks of public parameters only."""
    if step.release_key is None:
        return
    hidden = step.private | _HIDDEN
    public = [name for name in step.signature.parameters if name not in hidden]
    try:
        fields = list(_fields(step.release_key))
    except ValueError as error:
        msg = f"release_key {step.release_key!r} of step {step.name!r}: {error}"
        raise ConfigurationError(msg) from error
    for field in fields:
        root = field.split(".")[0].split("[")[0]
        if root not in public:
            msg = (
                f"release_key {step.release_key!r} of step {step.name!r} speaks of "
                f"{field!r}; it may use only the public parameters: "
                f"{', '.join(public) or 'there are none'}"
            )
            raise ConfigurationError(msg)


def _fields(template: str) -> Iterator[str]:
    """Yield the fields of a template, those inside a format included."""
    for _, field, form, _ in string.Formatter().parse(template):
        if field is not None:
            yield field
            yield from _fields(form or "")
