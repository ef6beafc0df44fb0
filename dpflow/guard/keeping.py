"""Whether a step's output can be kept and replayed, as far as its declaration says."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dpflow.exceptions import ConfigurationError
from dpflow.guard.step import Step
from dpflow.ledger.codec import why_not_kept
from dpflow.policy import Policy


def check_keeping(step: Step, policies: Sequence[Policy], *, keyed: bool) -> None:
    """Refuse a step before it is charged whose output could not be replayed.

    A step with a release_key asks for it, and so does a policy with
    `replay: required`, for all steps that read its dataset.

    Args:
        step: What its author declares.
        policies: Of the datasets that it reads.
        keyed: Whether its output is kept under a key, its own or its flow run's.

    Raises:
        ConfigurationError: If so.
    """
    required = [each.dataset for each in policies if each.replay == "required"]
    if required and (step.fresh or not keyed):
        why = "it says fresh=True" if step.fresh else "nothing tells its calls apart"
        msg = (
            f"the policy of {required[0]!r} says `replay: required`, but step "
            f"{step.name!r} could not be replayed: {why}. Give it a release_key over "
            "its public arguments (a block: make it a function under @guarded), and "
            "no fresh=True. The step did not run."
        )
        raise ConfigurationError(msg)
    if not required and step.release_key is None:
        return
    for kind in _kinds(step.returns):
        why_not = why_not_kept(kind)
        if why_not is not None:
            msg = f"step {step.name!r} returns {why_not} The step did not run."
            raise ConfigurationError(msg)


def _kinds(annotation: Any) -> Iterator[type]:
    """Yield the classes that an annotation names, those of members included."""
    if annotation is None:
        return
    if typing.get_origin(annotation) in (typing.Literal, Callable):
        return
    members = typing.get_args(annotation)
    if isinstance(annotation, type) and not members:
        yield annotation
    for member in members:
        yield from _kinds(member)
