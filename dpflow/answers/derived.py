"""Sums, differences, shares, ratios and fits of released numbers, at no cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpflow.accounting.costs.noise import Gaussian, Laplace
from dpflow.answers import sums
from dpflow.answers.sources import Measured, check_shared, periods, read_measured
from dpflow.config import settings
from dpflow.exceptions import ReleaseError, require
from dpflow.guard.inspection import Tell, as_warning, inspect_ledger
from dpflow.noise.accuracy import Estimate, quantile
from dpflow.rounding import float_down, float_up, short_down

#: Coefficient of each release, also 0 of one that other noise would choose.
_Sum: Any = Counter


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer derived from releases: what `dpflow answer` prints.

    Attributes:
        question: The question in words.
        value: The derived number.
        interval: At 95 %. It covers the noise of the releases, not clipping, and one
            question.
        terms: Coefficients of each release in the sum and in its denominator, by
            release key; 0 where it is not in one of them.
        refined: Number of these releases whose noise is refined. Their intervals hold
            simultaneously and are wider than those of independent noise.
        anew: Price of asking anew: cost of each new release with the same interval,
            and its dataset. `dpflow.forecast` says how many fit.
    """

    question: str
    value: float
    interval: tuple[float, float]
    terms: Mapping[str, tuple[float, float]]
    refined: int
    anew: Mapping[str, str]


def answer(
    measure: str,
    *,
    start: str | None = None,
    end: str | None = None,
    minus: str | None = None,
    over: str | None = None,
    where: Mapping[str, str] | None = None,
    tell: Tell = as_warning,
) -> Answer:
    """Derive an answer from releases of steps that say `measures=`, at no cost.

    Of all combinations of releases it takes the one with the least noise, whatever
    their values are. The interval covers noise, not clipping, and one question at a
    time: choose the question before you see numbers.

    Args:
        measure: Name of the measure.
        start: The first hour, day, week or month.
        end: The last one, included. Default: the first.
        minus: Subtract a measure or a range: "visits", "1996-W10..1996-W22" or both.
        over: Divide by a measure or a range: a ratio or a share.
        where: Other fields of the release key, such as {"region": "north"}.
        tell: Hears what is wrong with numbers that are printed all the same.

    Raises:
        ReleaseError: If no combination of usable releases is the answer.
        ConfigurationError: If the range cannot be read.
        LedgerError: If the ledger is missing or out of reach.

    Examples:
        >>> answer("buyer_weeks", start="1997-W10", end="1997-W22").interval
    """
    around = f"{start or ''}..{end or start}" if start or end else ""
    question = f"{measure} {around}".strip()
    with inspect_ledger(settings(), tell=tell) as ledger:
        sources = read_measured(ledger, where or {})
    top, under = _sum_of(sources, measure, measure, around), _Sum()
    if minus is not None:
        top.subtract(_sum_of(sources, minus, measure, around))
        question += f" minus {minus}"
    if over is not None:
        under = _sum_of(sources, over, measure, around)
        question += f" over {over}"
    every = {**top, **under}
    for name in {s.shared["measure"] for s in every}:
        check_shared([s for s in every if s.shared["measure"] == name])
    check_shared([*every], "measure", "clip", "bounds, unit or relation")
    terms, divisor = ([(t[s], s.numbers[0]) for s in every] for t in (top, under))
    value, low, high = sums.ratio(terms, divisor) if under else sums.interval(terms)
    used = [
        {s: times for s, times in weights.items() if times} for weights in (top, under)
    ]
    return Answer(
        question=question,
        value=float(value),
        interval=(float_down(low), float_up(high)),
        terms={s.key: (float(top[s]), float(under[s])) for s in {**used[0], **used[1]}},
        refined=sum(s.numbers[0].draws > 1 for s in {**used[0], **used[1]}),
        anew=dict(map(_anew, filter(None, used))),
    )


def _sum_of(sources: Sequence[Measured], text: str, measure: str, around: str) -> Any:
    """Return the combination with the least noise that sums a measure over a range.

    Args:
        sources: Releases.
        text: "MEASURE", "FROM..TO" or both.
        measure: The measure if the text has none.
        around: The range if the text has none.

    Raises:
        ReleaseError: If no combination of usable releases is that sum.
    """
    name, _, last = text.rpartition(" ")
    measure, around = (name or measure, last) if ".." in last else (text, around)
    parts = {*(periods(*around.split("..", 1)) if around else ("",))}
    named = [s for s in sources if s.shared["measure"] == measure]
    good = [s for s in named if not s.problem and len(s.numbers) == 1]
    near = [s for s in good if not parts.isdisjoint(s.parts)]
    check_shared(near)
    chosen, reach = list[Measured](), parts
    while near:
        chosen, reach = chosen + near, reach.union(*(s.parts for s in near))
        others = [s for s in good if s not in chosen and s.shared == chosen[0].shared]
        near = [s for s in others if not reach.isdisjoint(s.parts)]
    numbers = [s.numbers[0] for s in chosen]
    times = sums.combination([s.parts for s in chosen], numbers, parts)
    gaps = sorted(parts.difference(*(s.parts for s in chosen))) or ["single parts"]
    gaps = gaps if around else ["all periods together: name some by --from and --to"]
    bad = [s for s in named if s not in good and not parts.isdisjoint(s.parts)]
    problems = [f"; {s.key} {s.problem or 'is a list'}" for s in bad]
    require(
        times is not None,
        f"Measure {measure!r} has no usable release for {', '.join(gaps[:3])}"
        f"{''.join(problems[:3])}. An answer adds up releases "
        "of steps that say measures=, over parts that cover its range. Measures here: "
        f"{', '.join(sorted({s.shared['measure'] for s in sources})) or 'none'}.",
        ReleaseError,
    )
    return _Sum(dict(zip(chosen, times or (), strict=True)))


def _anew(used: Mapping[Measured, Any]) -> tuple[str, str]:
    """Return the cost of one release with the same interval, and its dataset.

    One privacy unit may be in every part, unless the parts divide the dataset.
    """
    shared, parts = next(iter(used)).shared, {p for s in used for p in s.parts}
    size = shared["clip"] * (len(parts) if shared["partition"] is not None else 1)
    value, low, _ = sums.interval([(n, s.numbers[0]) for s, n in used.items()])
    is_normal = all(s.numbers[0].is_normal for s in used)
    half = (value - low) / quantile(sums.OUTSIDE, is_normal=is_normal)
    kind: Any = Gaussian if is_normal else Laplace
    noise = {"sigma" if is_normal else "scale": short_down(half)}
    return repr(kind(sensitivity=size, **noise)), shared["dataset"]


def consistent(total: str, *parts: str, tell: Tell = as_warning) -> dict[str, Estimate]:
    """Fit a released total and its released parts to each other, at no cost.

    Call it only for parts that are disjoint and complete, such as a count and the
    baskets of a histogram over the same rows. No fitted number is negative. Each
    interval is that of the fit without this condition, cut at 0.

    Source: docs/derivations/answers.md#consistent-releases.

    Args:
        total: Release key of the total.
        *parts: Release keys of the parts; a list of numbers is as many parts.
        tell: Hears what is wrong with numbers that are printed all the same.

    Returns:
        The fitted numbers by release key; of a list, by "key[0]", "key[1]" and so on.

    Raises:
        ReleaseError: If the releases cannot be used, or do not belong together.
        LedgerError: If the ledger is missing or out of reach.

    Examples:
        >>> consistent("customers/1997-W10", "baskets/1997-W10")["customers/1997-W10"]
    """
    import numpy as np  # noqa: PLC0415
    from scipy.optimize import nnls  # type: ignore[import-untyped] # noqa: PLC0415

    with inspect_ledger(settings(), tell=tell) as ledger:
        sources = [s for s in read_measured(ledger, {}) if not s.problem]
    chosen = [s for key in (total, *parts) for s in sources if s.key == key]
    is_one = len({s.parts for s in chosen}) == 1 == len(chosen[0].numbers) and parts
    require(
        is_one and [s.key for s in chosen] == [*dict.fromkeys((total, *parts))],
        f"Releases {[total, *parts]} cannot be fitted. Each key needs a usable release "
        "under measures=, all for one period, and the first a single number.",
        ReleaseError,
    )
    check_shared(chosen, "measure", "clip")
    items = {
        source.key + f"[{index}]" * (len(source.numbers) > 1): noisy
        for source in chosen
        for index, noisy in enumerate(source.numbers)
    }
    numbers, identity = [*items.values()], np.eye(len(items), dtype=int)
    variances, signs = np.array([n.variance for n in numbers]), 2 * identity[0] - 1
    scales = variances.astype(float) ** -0.5
    values = scales * [float(noisy.number) for noisy in numbers]
    matrix, fitted = identity[:, 1:] + identity[:, :1], dict[str, Estimate]()
    best = matrix @ nnls(matrix * scales[:, None], values)[0]
    # Each number takes its share of what the parts lack to the total.
    fit = identity - np.outer(variances * signs, signs / variances.sum())
    for name, row, value in zip(items, fit, map(float, best), strict=True):
        terms = [*zip(row, numbers, strict=True)]
        low, high = (max(end, sums.ZERO) for end in sums.interval(terms)[1:])
        ends = min(float_down(low), value), max(float_up(high), value)
        fitted[name] = Estimate(value, interval=ends, confidence=0.95)
    return fitted
