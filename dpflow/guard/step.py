"""The definition of a DP step: what its author declares, checked when it is defined."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from dpflow.accounting.costs.base import Cost
from dpflow.accounting.costs.outcomes import OutcomeCost
from dpflow.accounting.costs.planned import PlannedNoise
from dpflow.exceptions import ConfigurationError, require
from dpflow.guard import functions, release_keys, shapes
from dpflow.interrupts import without_interrupts
from dpflow.noise.shape import Shape
from dpflow.noise.sources import OWN

T = TypeVar("T")

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
        load: Function that reads the body's first argument before the reservation.
        private: Parameters that hold private data; nothing derived from their values
            is ever journaled, keyed or printed.
        length: Number of places of a release without labels.
        groups: Labels of the rows of a release, in their order.
        columns: Names of its columns of numbers, in their order.
        release_key: Template over public parameters, under which the output is stored.
        partitions: Which partitions the body reads, of datasets that have some.
        ignore: Parameters and captured variables on which the stored output does not
            depend.
        moved_from: Former files and names of the function, as "flows/old.py:count".
        on_change: Whether a release of another cost is replayed.
        fresh: Whether every call draws anew, at a charge of its own.
        data_version: Version of the data, where the policy's does not do.
        cell: Function of the output that names the cell of the cost it falls into.
        noise: Who draws the noise: "release", or the body's "own".
        measures: Name of the released number, which adds up over parts.
        datasets: The datasets whose private data the body reads.
        signature: Of a call: that of the body, or with a load without its value.
        replays: Whether its public arguments identify a call, so that it may be
            replayed within a flow run. Not if body or load close over variables, or are
            methods: what those hold is no argument. Nor if it is a lambda: all have
            one name.

    Raises:
        ConfigurationError: If something declared cannot work.
    """

    name: str
    body: Callable[..., Any] = field(repr=False, compare=False)
    dataset: str | tuple[str, ...]
    cost: CostLike
    load: Callable[..., Any] | None = field(default=None, repr=False, compare=False)
    private: frozenset[str] = frozenset()
    length: shapes.LengthLike | None = None
    groups: shapes.GroupsLike | None = None
    columns: shapes.ColumnsLike | None = None
    release_key: str | None = None
    ignore: frozenset[str] = frozenset()
    moved_from: tuple[str, ...] = ()
    on_change: OnChange = "replay"
    partitions: tuple[str, ...] | Callable[..., Sequence[str]] | None = None
    fresh: bool = False
    data_version: str | None = None
    cell: CellLike | None = None
    noise: NoiseLike = "release"
    measures: str | None = None
    datasets: tuple[str, ...] = field(init=False)
    signature: inspect.Signature = field(init=False)
    replays: bool = field(init=False)

    def __post_init__(self) -> None:
        """Read and check what was declared."""
        body = self.body
        signature = functions.public_signature(self.name, body, self.load)
        own = inspect.isfunction(body) and body.__name__ != "<lambda>"
        receivers = functions.HIDDEN & {*signature.parameters}
        hidden = getattr(body, "__closure__", None) or receivers
        parts = self.partitions
        values = {
            "datasets": _names(self.dataset),
            "signature": signature,
            "private": frozenset(_names(self.private) or self.private),
            "ignore": frozenset(_names(self.ignore) or self.ignore),
            "partitions": parts if parts is None or callable(parts) else _names(parts),
            "moved_from": _names(self.moved_from) or self.moved_from,
            "replays": own and not hidden and not functions.find_captured(self.load),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        for keyword in ("name", "release_key", "data_version", "measures"):
            if (text := getattr(self, keyword)) is not None:
                check_text(text, keyword)
        check_flag(self.fresh, "fresh")
        cost = self.cost if isinstance(self.cost, Cost) else None
        drawn = None if self.noise == OWN else cost
        shapes.check_shape(self.name, self.declared_numbers, self.body, drawn)
        for problem, is_there in _problems(self, parts).items():
            require(not is_there, f"step {self.name!r} {problem}")
        for template in () if callable(self.partitions) else self.partitions or ():
            check_template(self, "partitions", check_text(template, "partitions"))
        if self.release_key is not None:
            check_template(self, "release_key", self.release_key)
            _check_key(self, self.release_key)

    @property
    def declared_numbers(self) -> dict[str, Any]:
        """The declarations of several numbers, by keyword."""
        return {"length": self.length, "groups": self.groups, "columns": self.columns}

    def find_captured(self) -> dict[str, Any]:
        """Return by name what body and load take with them into each call.

        Raises:
            ConfigurationError: If one name stands for two values.
        """
        values = functions.find_captured(self.body)
        for name, value in functions.find_captured(self.load).items():
            require(
                values.setdefault(name, value) is value or name in self.ignore,
                f"body and load of step {self.name!r} capture two values of {name!r}: "
                "rename one of the two. The step did not run.",
            )
        return values

    def ask(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        zones: Sequence[str] = ("UTC",),
        zones_of_parts: Sequence[str] = ("UTC",),
    ) -> StepCall:
        """Return the cost, partitions and key of a call.

        Args:
            args: The positional arguments.
            kwargs: The other arguments.
            zones: Time zones of the step's datasets, each once.
            zones_of_parts: Time zones of the names of their parts, each once.

        Raises:
            ConfigurationError: If a function or a template of the step has no answer
                for the public arguments.
        """
        signature = self.signature
        bound = signature.bind(*args, **kwargs)
        for name in self.private & bound.arguments.keys():
            parameter = signature.parameters[name]
            for value in functions.values_of(parameter, bound.arguments[name]):
                what = f"its private argument {name!r} is"
                functions.check_reusable(self.name, what, value)
        bound.apply_defaults()
        values = {**self.find_captured(), **bound.arguments}
        values = {k: v for k, v in values.items() if k not in self.private}
        names = self.signature.parameters.keys() - functions.HIDDEN
        public = {name: value for name, value in values.items() if name in names}
        key, parts = self.release_key, release_keys.Arguments(values, zones_of_parts)
        values = release_keys.Arguments(values, zones)
        return StepCall(
            cost=self._cost(public),
            shape=self._shape(public),
            partitions=self._find_partitions(parts, public),
            key=None if key is None else self._fill("release_key", key, values),
            texts={} if key is None else self._texts(key, values, public),
            public=public,
            receiver=values.get("self", values.get("cls")),
        )

    def _cost(self, public: Mapping[str, Any]) -> Cost | PlannedNoise:
        if isinstance(self.cost, Cost | PlannedNoise):
            return self.cost
        cost: Cost | PlannedNoise = self._call("cost", self.cost, public)
        require(
            isinstance(cost, Cost | PlannedNoise),
            f"the cost function of step {self.name!r} returned {cost!r}; it must "
            "return a cost such as Gaussian(...). The step did not run.",
        )
        return cost

    def _shape(self, public: Mapping[str, Any]) -> Shape:
        """Return the declared shape of a call.

        Raises:
            ConfigurationError: If it is not valid, or a release of it cannot be stored.
        """
        shape = shapes.read_declared_shape(
            self.name,
            {
                name: self._call(name, value, public) if callable(value) else value
                for name, value in self.declared_numbers.items()
            },
        )
        if self.release_key is not None:
            shapes.check_storable(self.name, shape, self.body)
        return shape

    def _find_partitions(
        self, values: Mapping[str, Any], public: Mapping[str, Any]
    ) -> tuple[str, ...]:
        if not self.partitions:
            return ()
        if callable(self.partitions):
            names = self._call("partitions", self.partitions, public)
        else:
            names = [self._fill("partitions", t, values) for t in self.partitions]
        texts = _names(names) if isinstance(names, list | tuple) else ()
        require(
            _are_different_texts(texts),
            f"the partitions of step {self.name!r} must be one or more different "
            f"names, got {names!r:.80}. The step did not run.",
        )
        return texts

    def _call(
        self, what: str, function: Callable[..., Any], public: Mapping[str, Any]
    ) -> Any:
        """Call a function of the public arguments."""

        def call() -> Any:
            parameters = inspect.signature(function).parameters
            kinds = {parameter.kind for parameter in parameters.values()}
            names = public if inspect.Parameter.VAR_KEYWORD in kinds else parameters
            return function(**{name: public[name] for name in names if name in public})

        return self._evaluate(f"{what} function", call)

    def _texts(
        self, key: str, values: Mapping[str, Any], public: Mapping[str, Any]
    ) -> dict[str, str | None]:
        """Return the text of each argument; of instance and captured ones by field."""
        names = [*public]
        fields = release_keys.template_fields(key)
        names += [field for field in fields if _root(field) not in names]
        read = [name for name in names if _root(name) not in self.ignore]
        title = f"release_key {key!r}"
        result = self._evaluate(title, lambda: release_keys.identify(read, key, values))
        return {**dict.fromkeys(names), **result}

    def _fill(self, keyword: str, template: str, values: Mapping[str, Any]) -> str:
        """Fill a template with the arguments."""
        title = f"{keyword} {template!r}"
        return self._evaluate(title, lambda: release_keys.fill(template, values))

    def _evaluate(self, what: str, work: Callable[[], T]) -> T:
        """Raise one error where a function or template does not fit the arguments."""
        try:
            return work()
        except without_interrupts(Exception) as error:
            is_ambiguous = isinstance(error, release_keys.AmbiguousArgument)
            why = "" if is_ambiguous else f"{type(error).__name__}: "
            text = str(error).rstrip(".")
            msg = (
                f"{what} of step {self.name!r} fails for its arguments: {why}"
                f"{text}. The step did not run."
            )
            raise ConfigurationError(msg) from error


class StepCall(NamedTuple):
    """Request of one call of a step.

    Attributes:
        cost: The worst case.
        shape: What is declared of several numbers.
        partitions: Names of the partitions that the body reads.
        key: The release key, if the step has one.
        texts: Under a release key, the text that identifies each argument; None of an
            argument that is ignored.
        public: The public arguments by name.
        receiver: The instance or class that a method is called on, if it is one.
    """

    cost: Cost | PlannedNoise
    shape: Shape
    partitions: tuple[str, ...]
    key: str | None
    texts: Mapping[str, str | None]
    public: Mapping[str, Any]
    receiver: object = None


def define_step(
    function: Callable[..., Any], *, name: str | None = None, **declared: Any
) -> Step:
    """Return the step that the keywords of `guarded` declare.

    Raises:
        ConfigurationError: If something declared cannot work.
    """
    functions.check_body(function)
    title = functions.name_of(function) if name is None else name
    step = Step(body=function, name=title, **declared)
    _costs.setdefault(step.name, {})[place_of(function)] = step.cost
    return step


def place_of(function: Callable[..., Any]) -> tuple[str, str]:
    """Return module and name of a function, which are the same if it changes."""
    module = getattr(function, "__module__", "")
    return str(module), str(getattr(function, "__qualname__", ""))


#: The number of failed loads by the bodies of steps, since the last reservation.
failed_loads: WeakKeyDictionary[Callable[..., Any], int] = WeakKeyDictionary()
#: The costs of the steps that this process defined, by name, and by the function that
#: has it: one that is defined again replaces its own.
_costs: dict[str, dict[tuple[str, str], Any]] = {}


def list_fixed_costs() -> dict[str, list[Cost]]:
    """Return the costs of the steps of this process, by name, where all are fixed.

    Two flows may have steps of one name.
    """
    return {
        name: [*costs.values()]
        for name, costs in _costs.items()
        if all(isinstance(cost, Cost) for cost in costs.values())
    }


def _names(names: object) -> tuple[str, ...]:
    if isinstance(names, str):
        return (names,)
    return tuple(names) if isinstance(names, list | tuple) else ()


def _are_different_texts(names: Sequence[object]) -> bool:
    texts = {name for name in names if isinstance(name, str) and name}
    return len(texts) == len(names) > 0


def _problems(step: Step, parts: object) -> dict[str, bool]:
    """Return for each declaration that cannot work whether the step has it."""
    cost, cell, parameters = step.cost, step.cell, step.signature.parameters
    is_cost = isinstance(cost, Cost | PlannedNoise)
    names_cell = callable(cell) and not inspect.iscoroutinefunction(cell)
    kinds = (inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    is_generator = any(is_kind(step.body) for is_kind in kinds)
    unknown = sorted(step.private.difference(parameters))
    unread = sorted(step.ignore) if step.release_key is None else []
    return {
        f"needs dataset=: the name of a dataset, or several different names, got "
        f"{step.dataset!r}": not _are_different_texts(step.datasets),
        "describes an object by its address, and another one gets that later. Name the "
        "step by what it does": release_keys.has_address(step.name),
        "is a generator: an abandoned one is recorded as completed. Return the whole "
        "output, or make each part a step of its own": is_generator,
        "needs cost=: a cost such as Gaussian(sensitivity=1, sigma=20), or a function "
        f"that returns one, got {cost!r}": not is_cost and not callable(cost),
        f"has no parameters {unknown} to be private; its parameters: "
        f"{', '.join(parameters) or 'none'}": bool(unknown),
        "takes cell= as a function of its output that returns the name of a cell, and "
        f"a cost with cells, such as OutputDP({{...}}), got {cell!r} and {cost!r}": (
            cell is not None
            and not (names_cell and (isinstance(cost, OutcomeCost) or not is_cost))
        ),
        'takes noise="release" (the default), or noise="own" if its body draws the '
        "declared noise with its own code, got "
        f"{step.noise!r}": step.noise not in ("release", OWN),
        "takes partitions= as names, templates such as '{week}', or a function of its "
        f"public arguments, got {parts!r}": step.partitions == (),
        "takes moved_from= as former names of its function, such as "
        f'"flows/old.py:count", got {step.moved_from!r}': (
            step.moved_from != () and not _are_different_texts(_names(step.moved_from))
        ),
        'takes on_change="replay" (the default) or "refuse", got '
        f"{step.on_change!r}": step.on_change not in ("replay", "refuse"),
        f"has no release_key that could read the ignored {unread}": bool(unread),
    }


def _root(field: str) -> str:
    return field.split(".", maxsplit=1)[0].split("[", maxsplit=1)[0]


def _check_key(step: Step, key: str) -> None:
    """Check that a release key reads all that the output may depend on.

    Raises:
        ConfigurationError: If it does not, and `ignore` does not name the rest.
    """
    values = {**step.find_captured(), **step.signature.parameters}
    names = [name for name in values if name not in step.private]
    unknown = sorted(step.ignore.difference(names))
    require(
        not unknown,
        f"step {step.name!r} takes ignore= as names that its release_key could read: "
        f"{', '.join(names) or 'none'}; got {unknown}",
    )
    read = {*map(_root, release_keys.template_fields(key)), *step.ignore}
    decorator = functions.decorator_of(step.body)
    for name in names:
        field = f"{name}.region" if name in functions.HIDDEN else name
        advice = f'Write a field such as "{{{field}}}" into it, or'
        if name in step.signature.parameters.keys() - functions.HIDDEN:
            advice = f"If it is private data, say private=({name!r},). Else: {advice}"
        elif decorator:
            advice = (
                f"The decorator of {decorator!r} hides the step's function: put "
                "@guarded below it, or @dp_task; or say"
            )
        require(
            name in read or functions.is_constant(values[name]),
            f"release_key {key!r} of step {step.name!r} reads nothing of "
            f"{name!r}, so that a call with another one would get this one's release. "
            f"{advice} ignore=({name!r},) if the output does not depend on it",
        )


def check_text(value: object, name: str) -> str:
    """Return a text that is not empty, or say which keyword is wrong.

    Raises:
        ConfigurationError: If it is anything else.
    """
    text = value if isinstance(value, str) else ""
    require(text, f"{name}= takes a text that is not empty, got {value!r}")
    return text


def check_flag(value: object, name: str) -> bool:
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
    hidden = step.private if ours else step.private | functions.HIDDEN
    names = [*(step.find_captured() if ours else ()), *step.signature.parameters]
    public = [name for name in names if name not in hidden]
    title = f"{keyword} {template!r} of step {step.name!r}"
    try:
        fields = list(release_keys.template_fields(template))
        release_keys.check_calendars(template)
    except without_interrupts(ValueError) as error:
        msg = f"{title}: {error}"
        raise ConfigurationError(msg) from error
    for name in fields:
        require(
            _root(name) in public,
            f"{title} speaks of {name!r}; it may use only the public parameters: "
            f"{', '.join(public) or 'there are none'}",
        )
