"""Sums over the people who can still pay, run after run."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpflow.accounting.costs.noise import Gaussian
from dpflow.exceptions import ReleaseError
from dpflow.mechanisms.person_stores import StorePlace
from dpflow.mechanisms.rows import Floats, NormClip
from dpflow.noise.draws import draw
from dpflow.people import gaussian_costs
from dpflow.rounding import Number

#: Whose each row of a shard is, and what the rows hold; None: they are counted.
Rows = tuple[Sequence[Any], NDArray[Any] | None]


@dataclass(frozen=True, slots=True)
class PrivateTotal:
    """What one shard sums to, on its way to whoever adds up: private data.

    Attributes:
        numbers: float64[columns], whole numbers of the grid's steps.
        counted: Whether the rows were single numbers.
        once: The draw that it was charged for.
    """

    numbers: Floats = field(repr=False)
    counted: bool
    once: str


def noisy_person_sum(
    stores: Sequence[StorePlace],
    read: Callable[[int], Rows],
    *,
    norm: Number,
    sigma: Number,
    executor: Executor | None = None,
) -> Any:
    """Return the noisy sum of what people have, over those who can still pay.

    What the rows of a person sum to is clipped, and they pay for its norm. Who cannot
    is left out and charged nothing. Each shard decides by itself, wherever it is run;
    noise is drawn once all of them are charged, here.

    Source: Feldman, Zrnic 2021 (arXiv 2008.11193) Alg. 1;
    docs/derivations/individual.md#from-run-to-run.

    Assumes: add-or-remove; the bound of the stores is charged in the ledger, once;
    sigma is public.

    Rounding: costs up; the sum is exact; noise as `draw`.

    Checked by: tests/mechanisms/test_person_sums.py, test_person_shards.py.

    Raises:
        ReleaseError: If there are not as many values as people.
        LedgerError: If the charges could not be made durable; nothing is drawn.
    """
    clip = NormClip.to(norm, shards=len(stores))
    # Another argument at each draw: an executor that remembers what it was asked, as
    # Dask's does, would else answer two draws with sums that were paid for once.
    once = secrets.token_hex(16)
    job = partial(shard_total, read=read, clip=clip, sigma=sigma, once=once)
    totals = list((map if executor is None else executor.map)(job, stores))
    if any(each.once != once for each in totals):
        msg = "the executor answered with the sums of another draw; nothing is drawn"
        raise ReleaseError(msg)
    if len({(each.counted, each.numbers.shape) for each in totals}) > 1:
        msg = "the rows of all shards must have as many columns, or none"
        raise ReleaseError(msg)
    total = np.sum([each.numbers for each in totals], axis=0)
    found = np.asarray(draw(Gaussian(sensitivity=clip.norm, sigma=sigma), total))
    return found[0] if totals[0].counted else found


def shard_total(
    place: StorePlace,
    *,
    read: Callable[[int], Rows],
    clip: NormClip,
    sigma: Number,
    once: str,
) -> PrivateTotal:
    """Charge the people of a shard, and sum up who can pay; in any process.

    A shard is read before it is locked, and settled once it is summed: whether a number
    comes of it is for whoever adds up to say, and nothing is ever given back.
    """
    people, values = read(place.shard.number)
    rows = np.ones(len(people)) if values is None else np.asarray(values, np.float64)
    if rows.ndim not in (1, 2) or len(rows) != len(people):
        msg = (
            f"values must be one number or one row of numbers for each of people, got "
            f"the shape {rows.shape}"
        )
        raise ReleaseError(msg)
    width = 1 if rows.ndim == 1 else rows.shape[1]
    ids, sums = _by_person(people, rows.reshape(len(rows), width))
    clipped = clip.apply(sums)
    with place.open() as store:
        costs = gaussian_costs(store.bound, clipped.squares(), sigma=sigma)
        total = clipped.total(store.reserve(costs, ids))
        store.settle()
    return PrivateTotal(total, rows.ndim == 1, once)


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
