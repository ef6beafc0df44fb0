"""The errors of dpflow.

Every error keeps the numbers it speaks of as attributes, survives pickling (errors
cross process pools and Prefect's result storage), and ends with what to do next.

    DpflowError
    ├── InvalidCost             a number in a cost or budget that cannot be used
    ├── UnsupportedCost         a theorem has no price for this cost
    ├── ConfigurationError      settings missing, contradictory or unreadable
    │   └── ContributionsError  declared bounds that do not fit the frame or the policy
    │       └── PublicContributionsError  as PublicError
    ├── PolicyError             a policy file that cannot be used
    │   ├── UnknownDataset      no policy governs this dataset
    │   ├── PolicyChanged       the file differs from what the ledger has applied
    │   └── PolicyNotApplied    the ledger has no copy yet, or will not apply this one
    ├── BudgetRefused           the ledger's answer when a gate does not admit a step
    │   └── BudgetExhausted     a cost this step was granted before no longer fits
    ├── LedgerError
    │   ├── LedgerMissing       there is no ledger at this place
    │   ├── LedgerUnavailable   locked, read-only, full or out of reach
    │   ├── LedgerUnwitnessed   nothing outside the ledger says that it is whole
    │   ├── LedgerCorrupt       the ledger contradicts itself
    │   │   └── LedgerRolledBack  it lacks charges that its witness has seen
    │   └── ReservationConflict an id or key is used for two different requests
    ├── ReleaseError            a value that cannot be released or stored
    │   └── PublicError         a declaration of a step that does not fit, in its body
    ├── LoadFailed              the load of a DP step raised; nothing was charged
    └── DPStepFailed            the body of a DP step raised; its text is withheld
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any, ClassVar
from weakref import WeakKeyDictionary


def how_to_install(extra: str) -> str:
    """Say how to install dpflow with one of its extras.

    Not by its name: on the package index that name is another project's.
    """
    version = getattr(sys.modules["dpflow"], "__version__", "VERSION")
    return (
        f"in a checkout of dpflow run: pip install '.[{extra}]', or, in the folder of "
        f"its wheel: pip install './prefect_dpflow-{version}-py3-none-any.whl[{extra}]'"
    )


class DpflowError(Exception):
    """Root of all errors raised by dpflow.

    Args:
        message: What is wrong, the limit that applies, and what to do.
        **details: The numbers and names behind the message. Each becomes an
            attribute of the error.
    """

    #: What `dpflow.exceptions` promises to set; other details may be present.
    detail_names: ClassVar[tuple[str, ...]] = ()

    def __init__(self, message: str = "", /, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    def __getattr__(self, name: str) -> Any:
        """Look up a detail by name; a promised detail without a value reads as None."""
        details = vars(self).get("details", {})
        if name not in details and name not in self.detail_names:
            msg = f"{type(self).__name__} has no detail {name!r}"
            raise AttributeError(msg)
        return details.get(name)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by message and details, so that subclasses need no care.

        Notes (`add_note`) travel along.
        """
        notes = getattr(self, "__notes__", ())
        state = {"__notes__": list(notes)} if notes else None
        return partial(type(self), self.message, **self.details), (), state


class InvalidCost(DpflowError, ValueError):
    """A number in a cost or a budget that cannot be used."""

    detail_names = ("name", "value", "low", "high")


class UnsupportedCost(DpflowError, TypeError):
    """A theorem that has no sound price for a cost."""

    detail_names = ("theorem", "mechanism")


class ConfigurationError(DpflowError):
    """Settings that are missing, contradictory or unreadable."""


class ContributionsError(ConfigurationError):
    """Bounds on contributions that do not fit the frame or the policy.

    Its text contains declarations alone.
    """


class PolicyError(DpflowError):
    """A policy file that cannot be used."""

    detail_names: ClassVar[tuple[str, ...]] = ("file", "line", "hint")


class UnknownDataset(PolicyError):
    """A dataset that no policy governs."""

    detail_names = ("file", "line", "hint", "dataset", "known")


class PolicyChanged(PolicyError):
    """A policy file that differs from the copy that the ledger has applied."""

    detail_names = ("file", "line", "hint", "dataset", "differences")


class PolicyNotApplied(PolicyError):
    """A policy that was not applied, or that may not be applied this way.

    Where the lifetime forbids it, `total` is what all terms would add up to and
    `lifetime` what they may; both map epsilon and delta to decimal text.
    """

    detail_names = ("file", "line", "hint", "dataset", "total", "lifetime")


class BudgetRefused(DpflowError):
    """The ledger's answer when a gate does not admit a step.

    The budget is untouched. `gate` says which gate refused ("dataset", "flow" or
    "odometer"); `asked` and `left` map the theorem's components to decimal text;
    `fits` says in words what would still be admitted.
    """

    detail_names = (
        "dataset",
        "flow",
        "flow_run",
        "step",
        "gate",
        "theorem",
        "asked",
        "left",
        "fits",
        "cost",
    )


class BudgetExhausted(BudgetRefused):
    """A cost that this step was granted before and that no longer fits."""


class LedgerError(DpflowError):
    """Anything that keeps the ledger from answering."""

    detail_names: ClassVar[tuple[str, ...]] = ("ledger",)


class LedgerMissing(LedgerError):
    """There is no ledger at this place; dpflow never creates one without a command."""


class LedgerUnavailable(LedgerError):
    """The ledger is locked, read-only, full or out of reach; the step may not run."""


class LedgerCorrupt(LedgerError):
    """The ledger contradicts itself or its pinned identity."""


class LedgerRolledBack(LedgerCorrupt):
    """The ledger lacks charges that its witness has seen: a backup, a copy, a loss."""

    detail_names = ("ledger", "witness")


class LedgerUnwitnessed(LedgerError):
    """The witness is missing, so nothing shows whether the ledger forgot a charge."""

    detail_names = ("ledger", "witness")


class ReservationConflict(LedgerError):
    """An id or a release key that is already used for a different request."""

    detail_names = ("ledger", "reservation", "release_key")


class ReleaseError(DpflowError):
    """A value that cannot be released or stored; the value is never in the text."""


#: Text and details of the public errors that dpflow's own code made.
_origins: WeakKeyDictionary[BaseException, tuple[str, Any]] = WeakKeyDictionary()


class _Traced(DpflowError):
    """An error that is noted as it was when dpflow's own code made it."""

    def __init__(self, message: str = "", /, **details: Any) -> None:
        super().__init__(message, **details)
        frame = sys._getframe(1)  # noqa: SLF001
        if frame.f_globals.get("__name__") == __name__:
            frame = frame.f_back or frame  # of `require`
        if str(frame.f_globals.get("__name__")).startswith("dpflow."):
            _origins[self] = message, {**details}


class PublicError(_Traced, ReleaseError):
    """An error of dpflow's own checks of declarations, which leaves a body.

    Its text holds declared names and numbers only. A subclass is withheld, and so is
    one that the code of a body makes; what a body changes in one is lost. A load may
    make one with words of its own.
    """


class PublicContributionsError(_Traced, ContributionsError):
    """The same of declared bounds on contributions."""


def rebuild(error: BaseException) -> BaseException | None:
    """Return a public error as dpflow made it; None of any other error."""
    # A class that a body has made may claim to be equal.
    for kind in (PublicError, PublicContributionsError):
        if type(error) is kind and error in _origins:
            message, details = _origins[error]
            return kind(message, **details)
    return None


def require(
    holds: object, message: str, kind: type[DpflowError] = ConfigurationError
) -> None:
    """Refuse what cannot work by an error of the given kind."""
    if not holds:
        raise kind(message)


#: The flag of classes that are not compiled into Python or an extension.
_MADE_BY_PYTHON = 1 << 9


def public_kind(kind: type) -> Any:
    """Return the nearest class that code defines, not one that a body has defined.

    The name of a class can hold private data, and its metaclass may raise.
    """
    for base in vars(type)["__mro__"].__get__(kind):
        if not vars(type)["__flags__"].__get__(base) & _MADE_BY_PYTHON:
            return base
        try:
            result: Any = sys.modules[vars(type)["__module__"].__get__(base)]
            for part in vars(type)["__qualname__"].__get__(base).split("."):
                result = vars(result)[part]
        except BaseException:  # noqa: BLE001, S112 (whatever a metaclass does)
            continue
        if result is base:
            return result
    return object


def public_name(kind: type) -> str:
    """Return the name of that class, as its definition says it."""
    return str(vars(type)["__qualname__"].__get__(public_kind(kind))).split(".")[-1]


class LoadFailed(DpflowError):
    """The load of a DP step raised, before the reservation; nothing was charged.

    `error_type` is a class of errors of the system or of a database's driver, or "an
    error": which other class it is may depend on private data. A load shows words of
    its own by `PublicError`.
    """

    detail_names = ("dataset", "step", "error_type")


class DPStepFailed(DpflowError):
    """The body of a DP step raised; the message has only the type of the error.

    The text of an exception can hold private data, and Prefect stores it in its
    database, logs and events. A policy with `errors: keep` shows the original.
    """

    detail_names = ("dataset", "step", "error_type")
