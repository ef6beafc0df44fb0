"""The definition of a DP step: what its author declares, checked when it is defined."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from dpflow.accounting.costs.base import Cost
from dpflow.accounting.costs.outcomes import OutcomeCost
from dpflow.accounting.costs.planned import PlannedNoise
from dpflow.exceptions import ConfigurationError
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
    """What the author of a step declares.

    Attributes:
        name: Name in the journal.
        datasets: The datasets whose private data the body reads.
        cost: Worst case, or a function of the public arguments that returns it.
        signature: Of the body.
        private: Parameters that hold private data; nothing derived from their values
            is ever journaled, keyed or shown.
        release_key: Template over public parameters, under which the output is kept.
        partitions: Which partitions the body reads, of datasets that have some.
        ignore: Parameters and captured variables on which the kept output does not
            depend.
        on_change: Whether a release that was made at another cost is replayed.
        fresh: Whether every call draws anew, at a charge of its own.
        data_version: Version of the data, where the policy's does not do.
        replays: Whether a call is told by its public arguments, so that it may be
            replayed within a flow run. Not if the body closes over variables or is a
            method: what those hold is no argument. Nor if it is a lambda: all have
            one name.
        cell: Function of the output that names the cell of the cost it falls into.
        noise: Who draws the noise: "release", or the body's "own".
        source: Module and qualified name of the body, which tell two steps of one
            name apart within a flow run.
    """

    name: str
    datasets: tuple[str, ...]
    cost: CostLike
    signature: inspect.Signature
    private: frozenset[str] = frozenset()
    release_key: str | None = None
    ignore: frozenset[str] = frozenset()
    on_change: OnChange = "replay"
    partitions: PartitionsLike | None = None
    fresh: bool = False
    data_version: str | None = None
    cell: CellLike | None = None
    noise: NoiseLike = "release"
    source: str = ""
    replays: bool = True
    body: Callable[..., Any] | None = field(default=None, repr=False, compare=False)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return by name what templates may read.

        That is the public arguments, defaults included, the instance and the captured
        variables.
        """
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        found = {**captured(self.body), **bound.arguments}
        return {k: v for k, v in found.items() if k not in self.private}

    def public(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the public arguments of what `bind` returned."""
        names = self.signature.parameters.keys() - HIDDEN
        return {name: value for name, value in values.items() if name in names}

    def price(self, public: Mapping[str, Any]) -> Cost | PlannedNoise:
        """Return the worst case for these public arguments.

        Raises:
            ConfigurationError: If the cost function raises, asks for something that
                is no public argument, or returns no cost.
        """
        if isinstance(self.cost, Cost | PlannedNoise):
            return self.cost
        cost: object = self._asked("cost", self.cost, public)
        if not isinstance(cost, Cost | PlannedNoise):
            msg = (
                f"the cost function of step {self.name!r} returned {cost!r}; it must "
                "return a cost such as Gaussian(...). The step did not run."
            )
            raise ConfigurationError(msg)
        return cost

    def touched(self, public: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the names of the partitions that the body reads.

        Raises:
            ConfigurationError: If they are not texts, or one is named twice.
        """
        if self.partitions is None:
            return ()
        if isinstance(self.partitions, str):
            found = [self._filled("partitions", self.partitions, public)]
        elif callable(self.partitions):
            found = self._asked("partitions", self.partitions, public)
        else:
            found = [
                self._filled("partitions", each, public) for each in self.partitions
            ]
        names = found if isinstance(found, list | tuple) else None
        if not names or not all(isinstance(name, str) and name for name in names):
            msg = (
                f"the partitions of step {self.name!r} must be one or more names, got "
                f"{found!r:.80}. The step did not run."
            )
            raise ConfigurationError(msg)
        if len(set(names)) != len(names):
            msg = f"step {self.name!r} names a partition twice: {names!r:.80}"
            raise ConfigurationError(msg)
        return tuple(names)

    def _asked(
        self, what: str, function: Callable[..., Any], public: Mapping[str, Any]
    ) -> Any:
        """Call a function of the public arguments."""
        try:
            return function(**self._arguments_of(function, public))
        except Exception as error:
            msg = (
                f"the {what} function of step {self.name!r} raised "
                f"{type(error).__name__}: {error}. It must have an answer for every "
                "public argument. The step did not run."
            )
            raise ConfigurationError(msg) from error

    def _arguments_of(
        self, function: Callable[..., Any], public: Mapping[str, Any]
    ) -> dict[str, Any]:
        parameters = inspect.signature(function).parameters.values()
        public = self.public(public)
        if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
            return public
        return {p.name: public[p.name] for p in parameters if p.name in public}

    def key(self, public: Mapping[str, Any]) -> str | None:
        """Return the release key for these public arguments, if the step has one.

        Raises:
            ConfigurationError: If the template does not fit the arguments, or one of
                them cannot be told by a text.
        """
        if self.release_key is None:
            return None
        return self._filled("release_key", self.release_key, public)

    def identify_arguments(
        self, values: Mapping[str, Any], digest: Callable[[str, str], str]
    ) -> dict[str, str | None]:
        """Return by argument the digest that tells it from others under the same key.

        Of the instance and of captured variables it is by field. None: it is ignored.

        Raises:
            ConfigurationError: If no text tells one of them.
        """
        key, names = self.release_key or "", [*self.public(values)]
        names += [f for f in template_fields(key) if _root(f) not in names]
        asked = [name for name in names if _root(name) not in self.ignore]
        texts = self._read_template("release_key", key, identify, asked, key, values)
        digests = {name: digest(name, text) for name, text in texts.items()}
        return {**dict.fromkeys(names), **digests}

    def _filled(self, keyword: str, template: str, public: Mapping[str, Any]) -> str:
        """Fill a template with the public arguments."""
        found: str = self._read_template(keyword, template, fill, template, public)
        return found

    def _read_template(
        self, keyword: str, template: str, ask: Callable[..., Any], *about: Any
    ) -> Any:
        """Return what a function says of a template, or say why it does not fit."""
        try:
            return ask(*about)
        except Untold as error:
            msg = (
                f"{keyword} {template!r} of step {self.name!r}: {error}. The step did "
                "not run."
            )
            raise ConfigurationError(msg) from error
        except Exception as error:
            msg = (
                f"{keyword} {template!r} of step {self.name!r} does not fit its "
                f"arguments ({type(error).__name__}: {error}). The step did not run."
            )
            raise ConfigurationError(msg) from error


def define_step(
    function: Callable[..., Any],
    *,
    dataset: str | tuple[str, ...],
    cost: CostLike,
    private: tuple[str, ...] = (),
    release_key: str | None = None,
    ignore: tuple[str, ...] = (),
    on_change: OnChange = "replay",
    partitions: PartitionsLike | None = None,
    fresh: bool = False,
    data_version: str | None = None,
    cell: CellLike | None = None,
    noise: NoiseLike = "release",
    name: str | None = None,
) -> Step:
    """Check what the author of a step declares, with the keywords of `guarded`.

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
    if not isinstance(cost, Cost | PlannedNoise) and not callable(cost):
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
        ignore=frozenset((ignore,) if isinstance(ignore, str) else ignore),
        on_change=on_change,
        partitions=_checked_partitions(title, partitions),
        fresh=checked_flag(fresh, "fresh"),
        data_version=_optional_text(data_version, "data_version"),
        cell=_checked_cell(title, cost, cell),
        noise=_checked_noise(title, noise),
        source=_source(function),
        replays=_replays(function, signature),
        body=function,
    )
    for keyword, template in _templates(step):
        check_template(step, keyword, template)
    _check_key(step)
    return step


def _root(field: str) -> str:
    return field.split(".", maxsplit=1)[0].split("[", maxsplit=1)[0]


def _check_key(step: Step) -> None:
    """Check that a release key speaks of all that the output may depend on.

    Raises:
        ConfigurationError: If it does not, and `ignore` does not name the rest.
    """
    found = {**captured(step.body), **step.signature.parameters}
    names = [name for name in found if name not in step.private]
    unknown = step.ignore.difference(names if step.release_key else ())
    if unknown or step.on_change not in {"replay", "refuse"}:
        msg = (
            f'step {step.name!r} takes on_change="replay" (the default) or "refuse", '
            "and ignore= as names that its release_key could read: "
            f"{', '.join(names) or 'none'}; got {step.on_change!r}, {sorted(unknown)}"
        )
        raise ConfigurationError(msg)
    read = {*map(_root, template_fields(step.release_key or "")), *step.ignore}
    for name in names if step.release_key else ():
        if name not in read and not is_constant(found[name]):
            field = f"{name}.region" if name in HIDDEN else name
            msg = (
                f"release_key {step.release_key!r} of step {step.name!r} reads nothing "
                f"of {name!r}, so that a call with another one would get this one's "
                f'release. Write a field such as "{{{field}}}" into it, or '
                f"ignore=({name!r},) if the output does not depend on it"
            )
            raise ConfigurationError(msg)


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
    if not isinstance(value, str) or not value:
        msg = f"{name}= takes a text that is not empty, got {value!r}"
        raise ConfigurationError(msg)
    return value


def checked_flag(value: object, name: str) -> bool:
    """Return a truth value, or say which keyword is wrong.

    Raises:
        ConfigurationError: If it is anything else.
    """
    if not isinstance(value, bool):
        msg = f"{name}= takes True or False, got {value!r}"
        raise ConfigurationError(msg)
    return value


def _optional_text(value: object, name: str) -> str | None:
    return None if value is None else checked_text(value, name)


def _checked_name(function: Callable[..., Any], name: str | None) -> str:
    check_body(function)
    title = name_of(function) if name is None else checked_text(name, "name")
    if has_address(title):
        msg = (
            f"step {title!r} describes an object by its address, and another one gets "
            "that later. Name the step by what it does"
        )
        raise ConfigurationError(msg)
    return title


def _replays(function: Callable[..., Any], signature: inspect.Signature) -> bool:
    if not inspect.isfunction(function) or function.__name__ == "<lambda>":
        return False
    return not (function.__closure__ or HIDDEN & set(signature.parameters))


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


def _checked_cell(title: str, cost: CostLike, cell: CellLike | None) -> CellLike | None:
    if cell is None:
        return None
    if not callable(cell) or inspect.iscoroutinefunction(cell):
        msg = (
            f"step {title!r} takes cell= as a function of its output that returns the "
            f"name of a cell, got {cell!r}"
        )
        raise ConfigurationError(msg)
    if isinstance(cost, Cost | PlannedNoise) and not isinstance(cost, OutcomeCost):
        msg = (
            f"step {title!r} declares cell=, but {cost!r} has no cells; declare "
            'OutputDP({"none": ..., "answer": ...})'
        )
        raise ConfigurationError(msg)
    return cell


def _checked_noise(title: str, noise: NoiseLike) -> NoiseLike:
    if noise not in ("release", OWN):
        msg = (
            f'step {title!r} takes noise="release" (the default), or noise="own" if '
            f"its body draws the noise that its cost declares by itself, got {noise!r}"
        )
        raise ConfigurationError(msg)
    return noise


def _checked_partitions(title: str, partitions: object) -> PartitionsLike | None:
    if partitions is None or callable(partitions):
        return partitions
    found = [partitions] if isinstance(partitions, str) else partitions
    if isinstance(found, list | tuple) and found:
        return tuple(checked_text(item, "partitions") for item in found)
    msg = (
        f"step {title!r} takes partitions= as names, templates such as '{{week}}', or "
        f"a function of its public arguments, got {partitions!r}"
    )
    raise ConfigurationError(msg)


def _templates(step: Step) -> Iterator[tuple[str, str]]:
    """Yield the templates of a step, each with its keyword."""
    if step.release_key is not None:
        yield "release_key", step.release_key
    if step.partitions is not None and not callable(step.partitions):
        for template in step.partitions:
            yield "partitions", template


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
    try:
        fields = list(template_fields(template))
        check_calendars(template)
    except ValueError as error:
        msg = f"{keyword} {template!r} of step {step.name!r}: {error}"
        raise ConfigurationError(msg) from error
    for name in fields:
        if _root(name) not in public:
            msg = (
                f"{keyword} {template!r} of step {step.name!r} speaks of {name!r}; it "
                "may use only the public parameters: "
                f"{', '.join(public) or 'there are none'}"
            )
            raise ConfigurationError(msg)
