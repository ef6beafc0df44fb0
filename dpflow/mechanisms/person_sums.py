"""Sums over the people who can still pay, run after run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpflow.accounting.costs.noise import Gaussian
from dpflow.accounting.rules.individual import PersonBudgets
from dpflow.exceptions import LedgerError, PublicError
from dpflow.guard.project import people_folder
from dpflow.mechanisms.drawn import claimed
from dpflow.mechanisms.rows import Floats, NormClip
from dpflow.noise.draws import add_noise
from dpflow.people import PersonStore, gaussian_costs
from dpflow.rounding import Number


def person_sum(
    people: Sequence[Any],
    values: NDArray[Any] | None = None,
    *,
    norm: Number = 1,
    sigma: Number,
) -> Any:
    """Release a sum over the people who can still pay, each from a budget of their own.

    The running step must have declared `PersonBudgets`, under a policy with
    `filter: {theorem: individual, measure: gdp}`. The rest of each person's budget
    is stored from run to run, in a file in the ledger's folder. Noise is drawn once
    the charges of all people are durable.

    Source: Feldman, Zrnic 2021 (arXiv 2008.11193) Alg. 1;
    docs/derivations/individual.md#from-run-to-run.

    Assumes: add-or-remove; the bound of the store is charged in the ledger, once;
    sigma is public.

    Rounding: costs up; the sum is exact; noise as `add_noise`.

    Checked by: tests/mechanisms/test_person_sums.py.

    Args:
        people: Whose each row is: texts or whole numbers. Rows of anything else do
            not count.
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
    clip = NormClip.to(norm)
    rows = np.ones(len(people)) if values is None else np.asarray(values, np.float64)
    if rows.ndim not in (1, 2) or len(rows) != len(people):
        msg = "values must be one number or one row of numbers for each of people"
        raise PublicError(msg)
    ids, sums = _by_person(people, np.atleast_2d(rows.T).T)
    execution, _ = claimed("person_sum()", PersonBudgets, relation="add-or-remove")
    clipped, project = clip.apply(sums), execution.project
    squares = clipped.squares()
    try:
        folder = people_folder(project.settings)
        store = PersonStore(project.ledger, execution.request.reservation, folder)
        mask = store.reserve(ids, lambda b: gaussian_costs(b, squares, sigma=sigma))
    except LedgerError as error:
        # Its text names no person.
        msg = f"{type(error).__name__}: {error.message}"
        raise PublicError(msg) from None
    total = clipped.total(mask)
    with execution.drawing():
        noisy = add_noise(Gaussian(sensitivity=clip.norm, sigma=sigma), total)
    return noisy[0] if rows.ndim == 1 else noisy


def _by_person(people: Sequence[Any], rows: Floats) -> tuple[list[Any], Floats]:
    """Return the ids, each once, and what the rows of each sum to.

    One more row of zeros, which has no id, stands for an empty table.
    """
    places: dict[Any, int] = {}
    where = [places.setdefault(person, len(places)) for person in map(_plain, people)]
    sums = np.zeros((len(places) + 1, rows.shape[1]))
    # A warning about one person's overflow would be an output.
    with np.errstate(all="ignore"):
        np.add.at(sums, where, rows)
    return [*places, None], sums


def _plain(person: Any) -> Any:
    """Return an id that can be looked up: 7 and 7.0 are not one person."""
    plain = person.item() if isinstance(person, np.generic) else person
    return plain if type(plain) in (str, int) else None
