"""Mechanisms whose output decides what they cost, for the body of a DP step.

Each takes what the running step declared as its cost, draws all noise through OpenDP,
and reports the cell of its output, so that the filters `output-dp` and `rdp` charge no
more than that cell. Under other filters the worst case stays charged.
"""

# ruff: noqa: PLC0415 (the mechanisms import numpy, which takes long)

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeVar

from dpflow.accounting.costs.base import Cost
from dpflow.accounting.costs.noise import Gaussian
from dpflow.accounting.costs.outcomes import OutputDP, ProposeTestRelease
from dpflow.accounting.costs.sparse_vector import SparseVector
from dpflow.accounting.rules.individual import IndividualBound, PersonBudgets
from dpflow.exceptions import PublicError
from dpflow.guard.charge import Execution, current_execution
from dpflow.guard.iterations import SubStep, iterations
from dpflow.rounding import Number, exact_epsilon

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dpflow.mechanisms.above_threshold import Query
    from dpflow.mechanisms.drawn import Drawn
    from dpflow.mechanisms.gradients import Gradients, Schedule

C = TypeVar("C", bound=Cost)
T = TypeVar("T")


def sparse_vector(
    queries: Sequence[Query], thresholds: float | Sequence[float] = 0
) -> tuple[bool, ...]:
    """Say of one query after the other whether it reaches its threshold, with noise.

    The running step must have declared `SparseVector`. It ends after that cost's number
    of positive answers: the queries behind them are neither answered nor evaluated. The
    number of positive answers is the cell that is charged.

    Args:
        queries: Private numbers, or functions without arguments that compute them. A
            privacy unit changes each by at most the declared sensitivity.
        thresholds: One public number for all queries, or one for each.

    Returns:
        The answers, fewer than the queries if it ended early.

    Raises:
        ReleaseError: Outside a step with such a cost, if the step has drawn noise
            already, or as `dpflow.mechanisms.above_threshold` says.

    Examples:
        >>> @guarded(dataset="cdnow", cost=SparseVector(positives=5, epsilon="0.5"))
        ... def busy_weeks(weeks):
        ...     return sparse_vector([lambda w=w: count(w) for w in weeks], 600)
    """
    from dpflow.mechanisms.above_threshold import sparse_vector as draw

    who = "sparse_vector()"
    execution, cost = _claimed(who, SparseVector)
    with execution.drawing():
        return _reported(execution, draw(cost, queries, thresholds))


def interquartile_range(
    values: NDArray[Any], *, base: float | None = None, shift: float = 0.0
) -> float | None:
    """Release an interquartile range by propose-test-release, or None.

    The running step must have declared `ProposeTestRelease`, under a policy whose
    relation is replace-one. With `tries=2` the second try has its bins shifted by one
    half; two steps with `tries=1`, the second after None with `shift=0.5`, do the same.

    Args:
        values: number[people], one for each person.
        base: Answers are within such factors of the truth; default: 1 + 1 / log of the
            number of people.
        shift: Of the bins of the first try, in [0, 1).

    Returns:
        The range, or None where no answer is safe.

    Raises:
        ReleaseError: Outside a step with such a cost and relation, if the step has
            drawn noise already, or if the values or bins cannot be used.
    """
    from dpflow.mechanisms.propose_test_release import interquartile_range as draw

    who = "interquartile_range()"
    _check_relation(who, "replace-one")
    execution, cost = _claimed(who, ProposeTestRelease)
    with execution.drawing():
        return _reported(execution, draw(cost, values, base=base, shift=shift))


def trimmed_mean(values: NDArray[Any], *, bound: Number, trim: Number) -> float | None:
    """Release the mean of the middle values by propose-test-release, or None.

    The running step must have declared `ProposeTestRelease` with one try, under a
    policy whose relation is replace-one. Noise hides a move by `bound`; whether one
    person could move the mean farther is tested.

    Args:
        values: number[people], one for each person.
        bound: How far one person may move the mean; public, or made of releases such
            as an `interquartile_range`.
        trim: Share of people who are left out at each end, below one half.

    Returns:
        The mean, or None where no answer is safe.

    Raises:
        ReleaseError: Outside a step with such a cost and relation, if the step has
            drawn noise already, or if the numbers cannot be used.
    """
    return _trimmed("trimmed_mean()", values, bound, trim)


def median(values: NDArray[Any], *, bound: Number) -> float | None:
    """Release the median by propose-test-release, or None.

    As `trimmed_mean`, with all but the middle one left out (the lower one of two).

    Args:
        values: number[people], one for each person.
        bound: How far one person may move the median; public, or made of releases.

    Returns:
        The median, or None where no answer is safe.

    Raises:
        ReleaseError: As `trimmed_mean`.
    """
    return _trimmed("median()", values, bound, None)


def _trimmed(
    who: str, values: NDArray[Any], bound: Number, trim: Number | None
) -> float | None:
    from dpflow.mechanisms.trimming import trimmed_mean as draw

    _check_relation(who, "replace-one")
    execution, cost = _claimed(who, ProposeTestRelease)
    with execution.drawing():
        return _reported(execution, draw(cost, values, bound=bound, trim=trim))


def recoverable_model(*, model: Number, test: Number) -> OutputDP:
    """Return the cost of a noisy model that comes out only if it passes a test.

    Without a model it costs the test alone, with one the larger of both epsilons; the
    model's noise makes use of the larger one.

    Source: Hartmann et al. 2022, Thm 17; docs/derivations/output.md#released-or-not.

    Args:
        model: Epsilon of the model's noise.
        test: Epsilon of the test.

    Raises:
        InvalidCost: If a number is out of range.
    """
    tested = exact_epsilon(test, name="test")
    return OutputDP(
        {"none": tested, "model": max(exact_epsilon(model, name="model"), tested)}
    )


def output_perturbation(
    features: NDArray[Any],
    labels: NDArray[Any],
    *,
    train: int,
    regularisation: Number,
    threshold: float,
) -> NDArray[Any] | None:
    """Fit a logistic regression, add noise, and return it if it passes a noisy test.

    The running step must have declared `recoverable_model`, under a policy whose
    relation is replace-one. On None the noisy model is gone, and only the test is
    charged; do not try to keep it.

    Args:
        features: number[people, parameters]; rows are scaled down to norm 1.
        labels: number[people]; above 0 is one class, all others are the other.
        train: How many people, the first ones, it is fitted to; the others test it.
            Who comes first must not depend on the data.
        regularisation: The weight of half the squared norm of the parameters.
        threshold: Largest mean absolute error, in [0, 2], that is good enough.

    Returns:
        The parameters, or None.

    Raises:
        ReleaseError: Outside a step with such a cost and relation, if the step has
            drawn noise already, or if shapes or numbers do not fit.
    """
    from dpflow.mechanisms.perturbed_models import (
        Recipe,
        is_recoverable,
        recovered_model,
    )

    who = "output_perturbation()"
    _check_relation(who, "replace-one")
    recipe = Recipe.of(train, regularisation, threshold)
    execution, cost = _claimed(who, OutputDP, is_recoverable)
    with execution.drawing():
        return _reported(execution, recovered_model(cost, features, labels, recipe))


def gradient_descent(
    start: NDArray[Any],
    gradients: Gradients,
    *,
    norm: Number,
    rate: float,
    good_enough: Callable[[SubStep, NDArray[Any]], bool] | None = None,
    sigma: Number | Schedule | None = None,
    steps: int | None = None,
    sampling_rate: Number = 1,
) -> NDArray[Any]:
    """Descend along noisy sums of clipped gradients, as the step's cost says.

    Under `EarlyStopping` of a `Gaussian` or a `PoissonSampledGaussian`, alone or the
    first part of a `Composed`, it runs `iterations` and may stop early. Under an
    `IndividualBound` every person has a budget of their own, the noise of each step may
    be chosen anew, and people may be sampled.

    Args:
        start: The first model; public.
        gradients: Returns the gradient of each person's loss at a model, one row for
            each person, in the same order always: an array, or for a linear model
            with many parameters the products of `dpflow.mechanisms.rows.Factors`.
        norm: Longest L2 norm of a person's gradient; longer ones are scaled down.
        rate: What the noisy sum is multiplied with before it is subtracted: a learning
            rate over a public number of people.
        good_enough: For `EarlyStopping`: whether to end after a sub-step, asked where
            it may stop. It may use the released model and `SubStep.test`, which is
            paid by a part of the sub-step, and nothing else that is private.
        sigma: For `IndividualBound`: standard deviation of the noise, or a function of
            the step's number and the model so far, and nothing private, that returns
            it.
        steps: For `IndividualBound`: how many steps there are.
        sampling_rate: For `IndividualBound` in the Renyi measure: the chance with which
            each person is drawn into a step, secretly and anew. Everyone pays for every
            step, drawn or not. Elsewhere the cost says it: `PoissonSampledGaussian`.

    Returns:
        The last model.

    Raises:
        ReleaseError: Outside a step with such a cost, or if it does not fit the clip.
        UnsupportedCost: If people are sampled under a bound in the gdp measure.
    """
    from dpflow.mechanisms import gradients as mechanism
    from dpflow.mechanisms.rows import NormClip

    who = "gradient_descent()"
    clip = NormClip.to(norm)
    execution = current_execution(who)
    individual = isinstance(execution.cost, IndividualBound)
    if individual != (sigma is not None) or individual != (steps is not None):
        msg = f"{who} takes sigma= and steps= under IndividualBound, and only there"
        raise PublicError(msg)
    if not individual and sampling_rate != 1:
        msg = (
            f"{who} takes sampling_rate= under IndividualBound only; elsewhere declare "
            "PoissonSampledGaussian(sampling_rate=..., noise_multiplier=...)"
        )
        raise PublicError(msg)
    if sigma is not None and steps is not None:
        _check_relation(who, "add-or-remove")
        execution, bound = _claimed(who, IndividualBound)
        with execution.drawing():
            return mechanism.individual_descent(
                bound,
                start,
                gradients,
                clip=clip,
                rate=rate,
                sigma=sigma,
                steps=steps,
                sampling_rate=sampling_rate,
            )
    model = 1.0 * start
    for step in iterations():
        cost = step.claim(who, step.parts[0])
        if step.number == 1 and isinstance(cost, Gaussian):
            _check_doubled(who, cost, clip.norm)
        each = gradients(model.copy())
        with execution.drawing():
            noisy = mechanism.noisy_gradient(cost, each, clip=clip)
        model = model - rate * noisy
        if step.may_stop and good_enough and good_enough(step, model.copy()):
            break
    return model


def person_sum(
    people: Sequence[Any],
    values: NDArray[Any] | None = None,
    *,
    norm: Number = 1,
    sigma: Number,
) -> Any:
    """Release a sum over the people who can still pay, each from a budget of their own.

    The running step must have declared `PersonBudgets`, under a policy with
    `filter: {theorem: individual, measure: gdp}`. What each person has left is
    kept from run to run in a store that lies beside the ledger.

    Args:
        people: Whose each row is: texts or whole numbers. Rows of anything else are
            left out.
        values: number[rows] or number[rows, columns]; default: 1 for each person who
            is there, so that people are counted.
        norm: Longest L2 norm of what the rows of one person sum to; more is scaled
            down.
        sigma: Standard deviation of the noise; public.

    Returns:
        A number, or float64[columns].

    Raises:
        ReleaseError: Outside a step with such a cost and relation, if the step has
            drawn noise already, or if the values do not fit.
        LedgerError: If the store cannot be used; the step did not run.
    """
    from dpflow.mechanisms.person_stores import person_store, store_errors_shown
    from dpflow.mechanisms.person_sums import noisy_person_sum
    from dpflow.mechanisms.rows import NormClip

    # What cannot be is refused before a store is made for it.
    NormClip.to(norm)
    _check_relation("person_sum()", "add-or-remove")
    execution, _ = _claimed("person_sum()", PersonBudgets)
    with execution.drawing(), store_errors_shown(), person_store(execution) as store:
        return noisy_person_sum(store, people, values, norm=norm, sigma=sigma)


def _check_doubled(who: str, cost: Gaussian, norm: Fraction) -> None:
    """Refuse a sensitivity of one row where a person may be replaced by another."""
    relations = {each.relation for each in current_execution(who).request.policies}
    if "replace-one" in relations and cost.sensitivity < 2 * norm:
        msg = (
            f"{who} under replace-one changes by up to twice the norm; declare "
            "Gaussian(sensitivity=...) of twice the norm"
        )
        raise PublicError(msg)


def _check_relation(who: str, relation: str) -> None:
    """Refuse a mechanism whose guarantee is for another neighbouring relation."""
    for policy in current_execution(who).request.policies:
        if policy.relation != relation:
            msg = (
                f"{who} is private for the relation {relation}; the policy of "
                f"{policy.dataset!r} says {policy.relation}"
            )
            raise PublicError(msg)


def _claimed(
    asked_by: str, kind: type[C], check: Callable[[C], bool] = lambda _: True
) -> tuple[Execution, C]:
    """Return the running execution and its cost, whose one draw is now taken."""
    execution = current_execution(asked_by)
    cost: Any = execution.cost
    if not isinstance(cost, kind) or not check(cost):
        msg = (
            f"{asked_by} needs a step with cost={kind.__name__}(...) of its own kind; "
            f"step {execution.request.step!r} declared {cost!r}"
        )
        raise PublicError(msg)
    execution.claim_draw(asked_by)
    return execution, cost


def _reported(execution: Execution, drawn: Drawn[T]) -> T:
    execution.report(drawn.cell)
    return drawn.output
