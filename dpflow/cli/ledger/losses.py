"""The sentences about what a ledger lacks of its witness."""

# ruff: noqa: PLC0415 (`dpflow --help` must not wait for the ledger)

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from dpflow.ledger import Loss
    from dpflow.ledger.audit.reconcile import Repaired

#: Most lines of a list that are printed.
SHOWN = 10


def loss_parts(losses: Sequence[Loss]) -> Iterator[str]:
    """Say what a ledger lacks, and what a repair would do."""
    if not losses:
        yield "The ledger holds all charges that were witnessed."
        return
    for loss in losses:
        yield from _lack(loss)
        if not loss.decided:
            yield "  A decision of a person was lost; a repair freezes the dataset."
    yield ""
    yield "Bring the right ledger back if there is one. If not, charge it again:"
    yield '`dpflow ledger reconcile --reason "..."`. Nothing is ever given back.'


def repair_parts(repaired: Sequence[Repaired], aside: Path | None) -> Iterator[str]:
    """Say what a repair charged again, and how to go on.

    Args:
        repaired: The datasets that lacked something.
        aside: The file that was replaced; None if none was.
    """
    from dpflow.ledger.decisions.refusals import amounts_text

    if not repaired:
        yield "The ledger holds all charges that were witnessed."
    for repair in repaired:
        yield from _lack(repair.loss)
        yield from _first(
            [f"charged {p.account}: {amounts_text(p.amount)}" for p in repair.posted]
        )
        if repair.frozen:
            yield from _frozen_parts(repair.loss)
        if repair.keys:
            yield "  These releases are lost; a run under such a key draws again, at a"
            yield "  new charge:"
            yield from _first([key or f"charge {name}" for name, key in repair.keys])
    if repaired:
        yield ""
        yield "Charged again in full. Charges of before the repair end in full, too."
    if aside is not None:
        yield f"The file that was replaced is {aside} now; its releases can be read:"
        yield f"  DPFLOW_LEDGER_URL=sqlite:///{aside} dpflow releases show KEY"


def _lack(loss: Loss) -> Iterator[str]:
    if loss.number > loss.common:
        entries = loss.number - loss.common
        what = f"{entries} witnessed {'entry' if entries == 1 else 'entries'}"
        yield f"Dataset {loss.dataset!r} lacks {what} after entry {loss.common}."
    else:
        yield f"Dataset {loss.dataset!r} went on apart from its witness."


def _frozen_parts(loss: Loss) -> Iterator[str]:
    apply = f"dpflow policy apply {loss.dataset}"
    yield f"  Dataset {loss.dataset!r} is frozen, because a decision was lost. Apply"
    yield f"  the newest policy again (`{apply}`; a lost term also needs --new-term"
    yield "  --raise-lifetime --reason TEXT), then"
    yield f"  `dpflow unfreeze {loss.dataset} --reason TEXT`."


def _first(texts: Sequence[str]) -> Iterator[str]:
    """Show the first of some things, and say how many more there are."""
    yield from (f"  {text}" for text in texts[:SHOWN])
    if len(texts) > SHOWN:
        yield f"  and {len(texts) - SHOWN} more; --json lists them"
