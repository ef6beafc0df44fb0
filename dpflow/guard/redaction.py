"""What the outside may see of an error that ended the body of a DP step.

An error is an output of the step. Its text, its notes, the errors behind it and the
local variables of its traceback can hold private data, and Prefect writes them to its
database, logs and events.
"""

from __future__ import annotations

import sys
import sysconfig
from asyncio import CancelledError
from collections.abc import Callable
from signal import SIGTERM
from types import TracebackType
from typing import Any, cast

from dpflow.config import short_path
from dpflow.exceptions import (
    BudgetExhausted,
    BudgetRefused,
    DPStepFailed,
    LoadFailed,
    PublicError,
    public_kind,
    public_name,
    rebuild,
)
from dpflow.interrupts import find_interrupted_frame
from dpflow.ledger.requests import Request

#: Python's own errors that are no `Exception`, the general one last.
_ENDINGS = (SystemExit, KeyboardInterrupt, GeneratorExit, CancelledError, BaseException)
#: How anyio, and so Prefect's timeouts, recognise their own cancellations.
_SCOPE = "Cancelled via cancel scope "
#: Errors of connections and statements, by the modules of drivers. Rows choose a
#: DataError.
_DRIVERS = {"sqlalchemy", "psycopg", "sqlite3", "duckdb", "_duckdb"}
_OF_DRIVERS = {"OperationalError", "InterfaceError", "ProgrammingError"}
#: Where the code of others is installed.
_INSTALLED = tuple(map(sysconfig.get_path, ("stdlib", "purelib", "platlib")))


class StoredError:
    """A block whose error goes to a function and is not raised.

    An `ExitStack` reads attributes of the error, and the body can define them.

    Args:
        store: Gets the error.
        around_yield: Whether others run the body, in a block of which this one is a
            part. An interrupt of its own frame may come before the body: it passes on.
    """

    def __init__(
        self, store: Callable[[BaseException], None], *, around_yield: bool = False
    ) -> None:
        self._store, self._around_yield = store, around_yield

    def __enter__(self) -> None: ...

    def __exit__(
        self, _: object, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if error is None:
            return True
        frame = find_interrupted_frame(error) if self._around_yield else None
        if frame is not None and traceback is not None and frame is traceback.tb_frame:
            return False
        self._store(error)
        return True


def redact_error(error: BaseException, *, step: str, dataset: str) -> BaseException:
    """Return what the outside may see of an error; the rest of it is dropped.

    Args:
        error: What ended the body. It is emptied if it is passed on.
        step: Name of the step.
        dataset: Name of its dataset.

    Returns:
        A `DPStepFailed` for every `Exception` but dpflow's own public ones. What is no
        `Exception` (a timeout, a termination) keeps its type, for that is what its
        receivers act on, and loses its text.
    """
    hint = (
        "The step was charged in full. Try it on the ledger of a test, at no cost: "
        "the fixture dpflow_ledger (docs/guides/test-a-pipeline.md). On synthetic "
        "data, `errors: keep` in the policy shows the text."
    )
    where = f"DP step {step!r} on dataset {dataset!r}"
    return _withheld(error, where, hint, dataset=dataset, step=step)


def redact_loader_error(error: BaseException, *, task: str) -> BaseException:
    """Return what the outside may see of an error of a task that loads private data.

    Args:
        error: What ended the task. It is emptied if it is passed on.
        task: Name of the task.

    Returns:
        As `redact_error`; nothing was charged.
    """
    if issubclass(type(error), BudgetRefused):
        msg = (
            f"a step inside private task {task!r} was refused (text withheld: it may "
            "hold private data). Ask for steps outside of it to see what would fit."
        )
        # The kind says whether budget was spent.
        exhausted = issubclass(type(error), BudgetExhausted)
        return (BudgetExhausted if exhausted else BudgetRefused)(msg, step=task)
    hint = 'To see the text where that is safe, say private_task(errors="keep").'
    return _withheld(error, f"private task {task!r}", hint, step=task)


def redact_load_error(error: BaseException, request: Request) -> BaseException:
    """Return what the outside may see of an error of a load; nothing was charged.

    Args:
        error: What ended the load.
        request: The request of the step.

    Returns:
        A `LoadFailed` for every `Exception`, with the words of a `PublicError`.
    """
    keeps = not any(policy.errors == "redact" for policy in request.policies)
    if not issubclass(type(error), Exception):
        return error if keeps else _ending(error)
    # The load itself may raise a public error with words of its own.
    public: Any = rebuild(error) or (error if type(error) is PublicError else None)
    name = public_name(type(error)) if keeps or public else _class_of_load(type(error))
    text, after = str(public or (error if keeps else "")), ""
    if not text:
        after = (
            " The text is withheld, for it may hold private data: on synthetic data, "
            "`errors: keep` in the policy shows it."
        )
    what = f"{name}: {text}".rstrip(".: ")
    msg = (
        f"The load of DP step {request.step!r} failed: {what}. Nothing was charged; "
        f"run the step again when its source answers.{after}"
    )
    datasets = ", ".join(request.datasets)
    result = LoadFailed(msg, dataset=datasets, step=request.step, error_type=name)
    result.__cause__ = error if keeps else None
    return result


def _class_of_load(kind: type) -> str:
    """Return the class of an error of the system or a driver; else "an error"."""
    for base in vars(type)["__mro__"].__get__(kind):
        name = public_name(base)
        module = str(vars(type)["__module__"].__get__(public_kind(base)))
        of_driver = name in _OF_DRIVERS and module.partition(".")[0] in _DRIVERS
        if of_driver or (module == "builtins" and issubclass(base, OSError)):
            return name
    return "an error"


def _withheld(
    error: BaseException, where: str, hint: str, **details: str
) -> BaseException:
    """Return an error with the type and line of another, or its permitted part."""
    name, line = public_name(type(error)), ""
    try:
        if (public := rebuild(error)) is not None:
            return public
        if not issubclass(type(error), Exception):
            return _ending(error)
        line = _line_of(error)
    except BaseException:  # noqa: BLE001, S110 (whatever its class does)
        pass
    msg = f"{name} in {where}{line} (text withheld: it may hold private data). {hint}"
    return DPStepFailed(msg, **details, error_type=name)


def _line_of(error: BaseException) -> str:
    """Return the last line of the user's code that an error comes from, if any."""
    result, trace = "", _own(error, "__traceback__")
    while trace is not None:
        code, names = trace.tb_frame.f_code, trace.tb_frame.f_globals
        # Text that was compiled in the body may name any file.
        module, file = sys.modules.get(names.get("__name__", "")), code.co_filename
        if (
            module is not None
            and getattr(module, "__file__", None) == file
            and not module.__name__.startswith("dpflow.")
            and not file.startswith(_INSTALLED)
        ):
            result = f" at {short_path(file)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return result


def _ending(error: BaseException) -> BaseException:
    """Return a new error for what is no `Exception`, of a type that receivers know."""
    if issubclass(type(error), BaseExceptionGroup):
        # At least one member ends the program.
        members = cast("Any", BaseExceptionGroup.exceptions).__get__(error)
        return _ending(next(m for m in members if not issubclass(type(m), Exception)))
    kind = public_kind(type(error))
    if kind is type(error) and kind.__module__.startswith("prefect."):
        # Prefect acts on the kinds of its own signals.
        return kind(SIGTERM) if kind.__name__ == "TerminationSignal" else kind()
    if kind.__module__.startswith("_pytest."):
        # Its classes say that they are Python's own.
        own = vars(sys.modules[kind.__module__]).values()
        kind = next((base for base in own if base is type(error)), kind)
        # pytest reads what its own errors carry, and stops where it is missing.
        fresh: BaseException = kind("")
        vars(fresh).update(dict.fromkeys(vars(fresh), ""))
        return fresh
    base = next(base for base in _ENDINGS if issubclass(kind, base))
    if base is SystemExit:
        code = _own(error, "code", SystemExit)
        # A code of eight bits could count rows; Python prints one that is no number.
        ended_well = code is None or (type(code) is int and code == 0)
        return SystemExit(code if ended_well else 1)
    return base(_SCOPE) if base is CancelledError and _of_a_scope(error) else base()


def _of_a_scope(error: BaseException) -> bool:
    """Return whether a cancellation, or one behind it, is that of a scope of anyio."""
    behind: BaseException | None = error
    while behind is not None and issubclass(type(behind), CancelledError):
        text = next(iter(_own(behind, "args")), None)
        if type(text) is str and text.startswith(_SCOPE):
            return True
        behind = _own(behind, "__context__")
    return False


def _own(error: BaseException, name: str, kind: type = BaseException) -> Any:
    """Return an attribute as Python keeps it, whatever the error's class says."""
    return vars(kind)[name].__get__(error)


def describe_failure(
    error: BaseException, error_type: str, step: str
) -> dict[str, str]:
    """Return what the journal keeps of an error: its type; of dpflow's own, its words.

    Args:
        error: The public form of the error.
        error_type: Name of the type of the error.
        step: Name of the step that failed.
    """
    failure = {"error_type": error_type}
    if (public := rebuild(error)) is not None:
        sentence = str(public).partition(". ")[0]
        failure["error"] = sentence.removeprefix(f"step {step!r} ")
    return failure
