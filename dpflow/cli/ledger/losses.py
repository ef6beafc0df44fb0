"""What a ledger lacks beside its witness, in words and for programs."""

# ruff: noqa: PLC0415 (`dpflow --help` must not wait for the ledger)

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dpflow.cli.output import say
from dpflow.notebook import plain

if TYPE_CHECKING:
    from pathlib import Path

    from dpflow.ledger.audit.lost_decisions import LostDecisions, LostRelease
    from dpflow.ledger.audit.reconcile import Comparison, Loss
    from dpflow.ledger.witness.lines import Line

_SHOWN = 10
_CHARGE_AGAIN = (
    "Bring the right ledger back if there is one. If not, charge it again with",
    '`dpflow ledger reconcile --reason "..."`; nothing is ever given back.',
)


def say_comparison(comparison: Comparison, *, repaired: bool) -> None:
    """Say what a ledger lacks, and whether it was charged again."""
    if comparison.agrees:
        say(f"The ledger holds all {comparison.lines} charges that were witnessed.")
        return
    for loss in comparison.losses:
        _say_loss(loss, repaired=repaired)
    if comparison.again:
        repair = "by a repair that did not begin the witness anew"
        say(f"{comparison.again} missing entries were charged again {repair}.")
    if comparison.unsigned:
        say(f"{comparison.unsigned} signed checkpoints are missing; sign new ones.")
    for lost in comparison.lost:
        say("", *_lost_lines(lost, repaired=repaired))
    if repaired:
        which = "; steps of the other datasets run again" if comparison.lost else ""
        say("", f"Charged again in full{which or '; steps run again'}.")
        return
    say("", *_CHARGE_AGAIN)


def say_lost_releases(
    lost: Sequence[LostRelease], *, whole: bool, aside: Path | None = None
) -> None:
    """Say which outputs are lost, and what happens when they are asked for again.

    `whole` says whether these are all, and `aside` is a file that still has them.
    """
    if not lost and whole:
        return
    told = _counted(lost)
    again = "A run that asks for one again draws again: another value, and"
    say("", f"{told}. {again}", "another charge.")
    if lost and not whole:
        say("Nothing tells of all; there may be more.")
    for each in lost[:_SHOWN]:
        say(f"  {plain(_release_text(each))}")
    if len(lost) > _SHOWN:
        say(f"  and {len(lost) - _SHOWN} more; --json lists them")
    if aside is not None and any(each.id for each in lost):
        show = f"sqlite:///{plain(str(aside))} dpflow releases show KEY"
        say("The file that was replaced still has them:", f"  DPFLOW_LEDGER_URL={show}")


def _counted(lost: Sequence[LostRelease]) -> str:
    if not lost:
        return "Releases may be lost that nothing tells of"
    known, unknown = sum(bool(e.id) for e in lost), sum(not e.id for e in lost)
    told = []
    if known:
        told.append(f"{known} {'release is' if known == 1 else 'releases are'} lost")
    if unknown:
        of = "charge" if unknown == 1 else "charges"
        told.append(f"what was kept under {unknown} {of} is lost, if anything was")
    text = ", and ".join(told)
    return text[0].upper() + text[1:]


def _release_text(lost: LostRelease) -> str:
    if lost.id is None:
        run = f" of run {lost.run}" if lost.run else ""
        return f"dataset {lost.dataset}: reservation {lost.reservation}{run}"
    name = lost.key or f"(within a flow run; id {lost.id})"
    return f"dataset {lost.dataset}: {name} of step {lost.step}, digest {lost.digest}"


def _lost_lines(lost: LostDecisions, *, repaired: bool) -> list[str]:
    """Say that a dataset is frozen, or would be, and how to go on."""
    dataset = plain(lost.dataset)
    apply, unfreeze = f"dpflow policy apply {dataset}", f"dpflow unfreeze {dataset}"
    verb = "is frozen" if repaired else "would be frozen"
    found = [f"Dataset {dataset!r} {verb}: {plain(lost.reason)}."]
    if lost.gates:
        found.append(
            f"  If a tightened policy was lost, apply it again: `{apply}`. If the "
            f"dataset may be used,\n  unfreeze it: `{unfreeze} --reason TEXT`."
        )
    for number in lost.terms:
        new = f"`{apply} --new-term --reason TEXT`"
        found.append(
            f"  Stop what still runs with the old policy, unfreeze the dataset and "
            f"apply term {number} again:\n  {new}."
            if repaired
            else f"  First apply term {number} again: {new}.\n  Then this freezes "
            "nothing for it."
        )
    return found


def _says_more(line: Line) -> bool:
    """Order lines about one entry: what it was says more than that it was the last."""
    from dpflow.ledger.witness.lines import HEAD

    return line.kind != HEAD


def _line_text(line: Line) -> str:
    """Say what a witnessed entry was, as far as its line tells."""
    if line.charge:
        return f"reservation {line.charge}" + (
            f" of run {line.run}" if line.run else ""
        )
    if not _says_more(line):
        return "all up to it"
    known = {
        "open": "a new term",
        "tighten": "a tightened policy",
        "freeze": "a freeze",
        "unfreeze": "an unfreeze",
        "checkpoint": "a signed checkpoint",
        "repair": "a repair",
    }
    return known.get(line.kind, "a charge by hand")


def _say_loss(loss: Loss, *, repaired: bool) -> None:
    from dpflow.ledger.views.words import amounts_text

    told = {line.number: line for line in sorted(loss.missing, key=_says_more)}
    lines, count = [told[number] for number in sorted(told)], len(told)
    entries = "entry" if count == 1 else "entries"
    say(f"Account {plain(loss.account)} lacks {count} witnessed {entries}:")
    for line in lines[:_SHOWN]:
        say(f"  entry {line.number}: {plain(_line_text(line))}")
    if count > _SHOWN:
        say(f"  and {count - _SHOWN} more; --json lists them")
    if loss.present is None or loss.repaired is None:
        say("  The ledger lacks the whole account.")
        return
    verb = "is now" if repaired else "would be"
    say(
        f"  Its use was {amounts_text(loss.present)} and {verb} "
        f"{amounts_text(loss.repaired)}."
    )
