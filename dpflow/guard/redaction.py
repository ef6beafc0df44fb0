"""What the outside may see of an error that ended the body of a DP step.

An error is an output of the step. Its text, its notes, the errors behind it and the
local variables of its traceback can hold private data, and Prefect writes them to its
database, logs and events.
"""

from __future__ import annotations

from asyncio import CancelledError
from contextlib import suppress

from dpflow.exceptions import (
    BudgetExhausted,
    BudgetRefused,
    ContributionsError,
    DpflowError,
    DPStepFailed,
    LedgerError,
    PolicyError,
    ReleaseError,
)

#: Errors of dpflow that name only types and public facts, if dpflow's own code raises
#: them in these places. The others may quote what the body computed, as `InvalidCost`
#: does, and what the body itself raises may say anything.
_PUBLIC = (ContributionsError, DPStepFailed, LedgerError, PolicyError, ReleaseError)
_OUR_PLACES = (
    "dpflow.guard.request",
    "dpflow.guard.functions",
    "dpflow.bounding.frames",
    "dpflow.bounding.contributions",
    "dpflow.mechanisms.in_steps",
    "dpflow.guard.charge",
    "dpflow.mechanisms.gradient_descent",
    "dpflow.mechanisms.person_stores",
    "dpflow.people.records",
    "dpflow.people.store",
    "dpflow.noise.containers",
    "dpflow.noise.draws",
    "dpflow.noise.refining",
    "dpflow.mechanisms.rows",
    "dpflow.mechanisms.sparse_vector",
    "dpflow.prefect.loader",
    "dpflow.guard.iterations",
    "dpflow.guard.reserving",
)

#: How anyio, and so Prefect's timeouts, recognise their own cancellations.
_SCOPE = "Cancelled via cancel scope "


def shown(error: BaseException, *, step: str, dataset: str) -> BaseException:
    """Return what the outside may see of an error; the rest of it is dropped.

    Args:
        error: What ended the body. It is emptied if it is itself shown.
        step: Name of the step.
        dataset: Name of its dataset.

    Returns:
        A `DPStepFailed` for every `Exception` but dpflow's own public ones. A refusal
        stays one, so that nobody tries it again. What is no `Exception` (a timeout, a
        termination) keeps its type, for that is what its receivers act on, and loses
        its text.
    """
    if isinstance(error, BudgetRefused):
        msg = (
            f"a step inside the body of DP step {step!r} on dataset {dataset!r} was "
            "refused (text withheld: it may hold private data). The step "
            f"{step!r} itself was charged in full. Ask for steps outside of bodies: "
            "then a refusal comes before anything is charged, and says what would fit."
        )
        return _refused(error)(msg, dataset=dataset, step=step)
    hint = (
        "The step was charged in full. To see the text where that is safe, set "
        "`errors: keep` in the policy."
    )
    where = f"DP step {step!r} on dataset {dataset!r}"
    return _withheld(error, where, hint, dataset=dataset, step=step)


def shown_by_loader(error: BaseException, *, task: str) -> BaseException:
    """Return what the outside may see of an error of a task that loads private data.

    Args:
        error: What ended the task. It is emptied if it is itself shown.
        task: Name of the task.

    Returns:
        As `shown`; nothing was charged.
    """
    if isinstance(error, BudgetRefused):
        msg = (
            f"a step inside private task {task!r} was refused (text withheld: it may "
            "hold private data). Ask for steps outside of it to see what would fit."
        )
        return _refused(error)(msg, step=task)
    hint = 'To see the text where that is safe, say private_task(errors="keep").'
    return _withheld(error, f"private task {task!r}", hint, step=task)


def _withheld(
    error: BaseException, where: str, hint: str, **facts: str
) -> BaseException:
    """Return an error that says where it was and its type, or the error, emptied."""
    told = _told(error)
    if told is not None:
        return told
    name = type(error).__name__
    msg = f"{name} in {where} (text withheld: it may hold private data). {hint}"
    return DPStepFailed(msg, **facts, error_type=name)


def shown_to_body(error: Exception, *, step: str) -> DpflowError:
    """Return what a body may see of an error of a step that it asked for.

    The body may raise it, log it, or be a Prefect task whose state keeps it.

    Args:
        error: What is wrong with the step inside.
        step: Name of the step around it.

    Returns:
        An error of the same kind that tells its kind.
    """
    kind = type(error) if isinstance(error, DpflowError) else DPStepFailed
    if kind.__module__ != DpflowError.__module__:
        kind = DPStepFailed
    name = type(error).__name__
    msg = (
        f"{name}: a step inside the body of DP step {step!r} was not made (text "
        "withheld: it may hold private data). Ask for that step outside of the body to "
        "see what is wrong."
    )
    return kind(msg, error_type=name)


def _refused(error: BudgetRefused) -> type[BudgetRefused]:
    """Return the kind of a refusal, which is what tells whether budget is gone."""
    return BudgetExhausted if isinstance(error, BudgetExhausted) else BudgetRefused


def _told(error: BaseException) -> BaseException | None:
    """Return an error that is told by its type, or None if that is withheld too."""
    if isinstance(error, BaseExceptionGroup) and not isinstance(error, Exception):
        # A group cannot be emptied; at least one member ends the program.
        members = (each for each in error.exceptions if not _is_plain(each))
        return _told(next(members))
    if not isinstance(error, Exception):
        _empty(error)
        return _bare(error)
    if isinstance(error, _PUBLIC) and _is_ours(error):
        return _bare(error)
    return None


def _is_ours(error: Exception) -> bool:
    """Say whether dpflow's own code raised an error, where it says public facts."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    module = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__"))
    return any(f"{module}.".startswith(f"{place}.") for place in _OUR_PLACES)


def _is_plain(error: BaseException) -> bool:
    return isinstance(error, Exception)


def _empty(error: BaseException) -> None:
    """Take the text out of an error that is no `Exception`."""
    if isinstance(error, SystemExit):
        # Python prints a code that is no number, and then ends with 1.
        error.code = error.code if isinstance(error.code, int | None) else 1
        error.args = (error.code,)
    elif not (isinstance(error, CancelledError) and _of_a_scope(error)):
        error.args = ()
    # What else an error carries can be in its text, too. Prefect acts on what its own
    # signals carry.
    kind = type(error)
    if not kind.__module__.startswith("prefect."):
        # pytest reads what its own errors carry, and stops where it is missing.
        tests = any(each.__module__.startswith("_pytest.") for each in kind.__mro__)
        kept = dict.fromkeys(vars(error)) if tests else {}
        vars(error).clear()
        vars(error).update(kept)
        with suppress(TypeError):  # classes made in C: those cannot be changed
            error.__class__ = _silent(kind)


def _silent(kind: type[BaseException]) -> type[BaseException]:
    """Return a kind of error of the same name that makes up no text of its own."""
    if (kind.__str__, kind.__repr__) == (BaseException.__str__, BaseException.__repr__):
        return kind
    own = {"__module__": kind.__module__, "__str__": BaseException.__str__}
    return type(kind.__name__, (kind,), {**own, "__repr__": BaseException.__repr__})


def _of_a_scope(error: CancelledError) -> bool:
    text = error.args[0] if error.args else None
    return isinstance(text, str) and text.startswith(_SCOPE)


def _bare(error: BaseException) -> BaseException:
    """Take the errors behind an error, its notes and its frames away."""
    earlier = error.__context__
    error.__cause__ = error.__context__ = error.__traceback__ = None
    if hasattr(error, "__notes__"):
        del error.__notes__
    if isinstance(error, CancelledError) and isinstance(earlier, CancelledError):
        # A scope looks for its own cancellation behind a later one, too.
        _empty(earlier)
        error.__context__ = _bare(earlier)
    return error
