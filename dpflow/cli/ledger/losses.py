"""The sentences about what a ledger lacks."""

# ruff: noqa: PLC0415 (`dpflow --help` must not wait for the ledger)

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from dpflow.ledger.audit.reconcile import (
        Comparison,
        Loss,
        LostDecisions,
        LostRelease,
    )
    from dpflow.ledger.witness.base import Line

#: Most lines of a list that are printed.
SHOWN = 10
_DECISIONS = {
    "open": "a new term",
    "tighten": "a tightened policy",
    "freeze": "a freeze",
    "unfreeze": "an unfreeze",
    "repair": "a repair",
}


def comparison_parts(comparison: Comparison, *, repaired: bool) -> Iterator[str]:
    """Say what a ledger lacks, and whether it was charged again."""
    if comparison.agrees:
        yield f"The ledger holds all {comparison.lines} charges that were witnessed."
        return
    for loss in comparison.losses:
        yield from _loss_parts(loss, repaired=repaired)
    if comparison.again:
        repair = "by a repair that did not begin the witness anew"
        yield f"{comparison.again} missing entries were charged again {repair}."
    for lost in comparison.lost:
        yield from ("", *_decision_parts(lost, repaired=repaired))
    yield ""
    if repaired:
        others = " of the other datasets" if comparison.lost else ""
        yield f"Charged again in full; steps{others} run again."
    else:
        yield "Bring the right ledger back if there is one. If not, charge it again:"
        yield '`dpflow ledger reconcile --reason "..."`. Nothing is ever given back.'


def release_parts(
    lost: Sequence[LostRelease], *, whole: bool, aside: Path | None = None
) -> Iterator[str]:
    """Say which outputs are lost, and what happens at the next step with their key.

    `whole` says whether these are all, and `aside` is a file that still has them.
    """
    if not lost and whole:
        return
    yield from ("", f"{_counted(lost)}. A run that asks for one again draws again:")
    yield "another value, and another charge."
    if lost and not whole:
        yield "Nothing tells of all; there may be more."
    yield from _first(lost, [_release(each) for each in lost[:SHOWN]])
    if aside is not None and any(each.id for each in lost):
        yield "The file that was replaced still has them:"
        yield f"  DPFLOW_LEDGER_URL=sqlite:///{aside} dpflow releases show KEY"


def _first(all_: Sequence[object], texts: Sequence[str]) -> Iterator[str]:
    """Show the first of some things, and say how many more there are."""
    yield from (f"  {text}" for text in texts)
    if len(all_) > SHOWN:
        yield f"  and {len(all_) - SHOWN} more; --json lists them"


def _counted(lost: Sequence[LostRelease]) -> str:
    known = sum(bool(each.id) for each in lost)
    said = []
    if known:
        said.append(f"{known} {'release is' if known == 1 else 'releases are'} lost")
    if unknown := len(lost) - known:
        of = "charge" if unknown == 1 else "charges"
        said.append(f"a release under {unknown} {of} is lost, if there was one")
    text = ", and ".join(said) or "releases without a record may be lost"
    return text[0].upper() + text[1:]


def _release(lost: LostRelease) -> str:
    if lost.id is None:
        run = f" of run {lost.run}" if lost.run else ""
        return f"dataset {lost.dataset}: reservation {lost.reservation}{run}"
    name = lost.key or f"(within a flow run; id {lost.id})"
    return f"dataset {lost.dataset}: {name} of step {lost.step}, digest {lost.digest}"


def _decision_parts(lost: LostDecisions, *, repaired: bool) -> Iterator[str]:
    """Say that a dataset is frozen, or would be, and how to go on."""
    apply = f"dpflow policy apply {lost.dataset}"
    verb = "is frozen" if repaired else "would be frozen"
    yield f"Dataset {lost.dataset!r} {verb}: {lost.reason}."
    if lost.gates:
        yield f"  If a tightened policy was lost, apply it again: `{apply}`. If the"
        yield "  dataset may be used, unfreeze it:"
        yield f"  `dpflow unfreeze {lost.dataset} --reason TEXT`."
    for number in lost.terms:
        new = f"`{apply} --new-term --reason TEXT`"
        if repaired:
            yield "  Stop what still runs with the old policy, unfreeze the dataset and"
            yield f"  apply term {number} again: {new}."
        else:
            yield f"  First apply term {number} again: {new}."
            yield "  Then this freezes nothing for it."


def _entry(line: Line) -> str:
    """Say what a witnessed entry was, as far as its line tells."""
    if line.charge:
        run = f" of run {line.run}" if line.run else ""
        return f"entry {line.number}: reservation {line.charge}{run}"
    return f"entry {line.number}: {_DECISIONS.get(line.kind, 'a charge by hand')}"


def _loss_parts(loss: Loss, *, repaired: bool) -> Iterator[str]:
    from dpflow.ledger.decision.refusal import amounts_text

    by_number = {line.number: line for line in loss.missing}
    lines = [by_number[number] for number in sorted(by_number)]
    entries = "entry" if len(lines) == 1 else "entries"
    yield f"Account {loss.account} lacks {len(lines)} witnessed {entries}:"
    yield from _first(lines, [_entry(line) for line in lines[:SHOWN]])
    if loss.present is None or loss.repaired is None:
        yield "  The ledger lacks the whole account."
        return
    verb, after = "is now" if repaired else "would be", amounts_text(loss.repaired)
    yield f"  Its use was {amounts_text(loss.present)} and {verb} {after}."
