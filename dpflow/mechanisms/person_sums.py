"""Sums over the people who can still pay, run after run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpflow.accounting.costs.noise import Gaussian
from dpflow.exceptions import PublicError
from dpflow.mechanisms.rows import Floats, NormClip
from dpflow.noise.draws import draw
from dpflow.people import PersonStore, gaussian_costs
from dpflow.rounding import Number


def noisy_person_sum(
    store: PersonStore,
    people: Sequence[Any],
    values: NDArray[Any] | None,
    *,
    norm: Number,
    sigma: Number,
) -> Any:
    """Return the noisy sum of what people have, over those who can still pay.

    What the rows of a person sum to is clipped, and they pay for its norm. Who cannot
    is left out and charged nothing. Noise is drawn once all of them are charged.

    Source: Feldman, Zrnic 2021 (arXiv 2008.11193) Alg. 1;
    docs/derivations/individual.md#from-run-to-run.

    Assumes: add-or-remove; the bound of the store is charged in the ledger, once;
    sigma is public.

    Rounding: costs up; the sum is exact; noise as `draw`.

    Checked by: tests/mechanisms/test_person_sums.py.

    Raises:
        ReleaseError: If there are not as many values as people.
        LedgerError: If the charges could not be made durable; nothing is drawn.
    """
    clip = NormClip.to(norm)
    rows = np.ones(len(people)) if values is None else np.asarray(values, np.float64)
    if rows.ndim not in (1, 2) or len(rows) != len(people):
        msg = "values must be one number or one row of numbers for each of people"
        raise PublicError(msg)
    width = 1 if rows.ndim == 1 else rows.shape[1]
    ids, sums = _by_person(people, rows.reshape(len(rows), width))
    clipped = clip.apply(sums)
    costs = gaussian_costs(store.bound, clipped.squares(), sigma=sigma)
    total = clipped.total(store.reserve(costs, ids))
    store.settle()
    found = np.asarray(draw(Gaussian(sensitivity=clip.norm, sigma=sigma), total))
    return found[0] if rows.ndim == 1 else found


def _by_person(people: Sequence[Any], rows: Floats) -> tuple[list[Any], Floats]:
    """Return the ids, each once, and what the rows of each sum to.

    One more row of zeros, whose id is none, stands for an empty table.
    """
    places: dict[Any, int] = {}
    where = [places.setdefault(each, len(places)) for each in map(_plain, people)]
    sums = np.zeros((len(places) + 1, rows.shape[1]))
    # A warning about one person's overflow would be an output.
    with np.errstate(all="ignore"):
        np.add.at(sums, where, rows)
    return [*places, None], sums


def _plain(person: Any) -> Any:
    """Return an id that can be looked up: 7 and 7.0 are not one person."""
    plain = person.item() if isinstance(person, np.generic) else person
    return plain if type(plain) in (str, int) else None
