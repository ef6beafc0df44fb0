"""`dpflow answer`: numbers derived from releases, at no cost."""

# ruff: noqa: PLC0415 (`dpflow --help` must not wait for the ledger)

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from dpflow.cli.output import Answer, Part, warn
from dpflow.notebook import Sheet

if TYPE_CHECKING:
    from dpflow.answers.derived import Answer as Derived


def answer(
    measure: str,
    *,
    start: str | None = None,
    end: str | None = None,
    minus: str | None = None,
    over: str | None = None,
    where: list[str] | None = None,
) -> Answer:
    """Derive a sum, difference, share or ratio from releases, at no cost.

    A step says by `measures=` what its number measures. The interval covers the noise
    of the releases, not clipping, and one question at a time.

    Example: `dpflow answer buyer_weeks --from 1997-W10 --to 1997-W22`
    """
    from dpflow.answers.derived import answer as derive

    pairs = [text.partition("=") for text in where or ()]
    if not all(name and equals for name, equals, _ in pairs):
        msg = "--where takes a field of the release key, such as region=north"
        raise typer.BadParameter(msg)
    fields = {name: text for name, _, text in pairs}
    operands = {"start": start, "end": end, "minus": minus, "over": over}
    result = derive(measure, **operands, where=fields, tell=warn)
    return result, _parts(result)


def _parts(record: Derived) -> Iterator[Part]:
    from contextlib import suppress
    from fractions import Fraction

    from dpflow.exceptions import DpflowError
    from dpflow.forecast.what_if import forecast
    from dpflow.notebook import escape_key
    from dpflow.rounding import short_down, short_up

    low, high = record.interval
    yield [(record.question, "bold cyan"), ", derived at no cost"]
    ends = f"{short_down(Fraction(low), 6)} to {short_up(Fraction(high), 6)}"
    yield (f"{record.value:.6g}, {ends} at 95 %", "bold")
    yield "The interval covers noise, not clipping, for one question at a time."
    if record.refined:
        yield (
            f"{record.refined} releases have refined noise. Their intervals hold for "
            "all draws simultaneously and are wider than those of independent noise."
        )
    columns = {
        "release": [escape_key(key) for key in record.terms],
        "times": [f"{times:.4g}" for times, _ in record.terms.values()],
        "in denominator": [f"{t:.4g}" if t else "" for _, t in record.terms.values()],
    }
    yield from ("", Sheet.of(columns, "times", "in denominator"), "")
    for cost, dataset in record.anew.items():
        yield f"A new release of a sum with an equal interval is {cost}."
        with suppress(DpflowError):
            runs = forecast(dataset, costs=[cost], tell=str).outlook.runs_left
            if runs is not None:
                yield f"The remaining budget of {dataset} pays for {runs} of these."
