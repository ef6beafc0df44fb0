"""What a ledger lacks beside its witness, in words and for programs."""

# ruff: noqa: PLC0415 (`dpflow --help` must not wait for the ledger)

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dpflow.cli.output import plain, say

if TYPE_CHECKING:
    from dpflow.ledger.lost import LostDecisions
    from dpflow.ledger.reconcile import Comparison, Loss
    from dpflow.ledger.witness_lines import Line

_SHOWN = 10


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """Return what a ledger lacks, for programs."""
    return {
        "agrees": comparison.agrees,
        "witnessed": comparison.lines,
        "older_than_a_repair": comparison.older,
        "checkpoints_missing": comparison.unsigned,
        "losses": [_loss_json(loss) for loss in comparison.losses],
        "lost_decisions": [_lost_json(each) for each in comparison.lost],
    }


def _loss_json(loss: Loss) -> dict[str, Any]:
    return {
        "account": loss.account,
        "used": loss.present,
        "repaired": loss.repaired,
        "missing": [
            {"entry": line.seq, "reservation": line.reservation, "run": line.run}
            for line in loss.missing
        ],
    }


def _lost_json(lost: LostDecisions) -> dict[str, Any]:
    return {
        "dataset": lost.dataset,
        "freeze_or_tightening": lost.gates,
        "terms": list(lost.terms),
        "because": lost.because,
    }


def say_comparison(comparison: Comparison, *, repaired: bool) -> None:
    """Say what a ledger lacks, and whether it was charged again."""
    if comparison.agrees:
        say(f"The ledger holds all {comparison.lines} charges that were witnessed.")
        return
    for loss in comparison.losses:
        _say_loss(loss, repaired=repaired)
    if comparison.unsigned:
        say(f"{comparison.unsigned} signed checkpoints are missing; sign new ones.")
    for lost in comparison.lost:
        say("", *_lost_lines(lost, repaired=repaired))
    if repaired:
        which = "; steps of the other datasets run again" if comparison.lost else ""
        say("", f"Charged again in full{which or '; steps run again'}.")
        return
    say(
        "",
        "Bring the right ledger back if there is one. If not, charge it again with",
        '`dpflow ledger reconcile --because "..."`; nothing is ever given back.',
    )


def _lost_lines(lost: LostDecisions, *, repaired: bool) -> list[str]:
    """Say that a dataset is frozen, or would be, and how to go on."""
    dataset = plain(lost.dataset)
    apply, thaw = f"dpflow policy apply {dataset}", f"dpflow thaw {dataset}"
    verb = "is frozen" if repaired else "would be frozen"
    found = [f"Dataset {dataset!r} {verb}: {plain(lost.because)}."]
    if lost.gates:
        found.append(
            f"  If a tightened policy was lost, apply it again: `{apply}`. If the "
            f"dataset may be used,\n  thaw it: `{thaw} --because TEXT`."
        )
    for number in lost.terms:
        new = f"`{apply} --new-term --because TEXT`"
        found.append(
            f"  Stop what still runs with the old policy, thaw the dataset and apply "
            f"term {number} again:\n  {new}."
            if repaired
            else f"  First apply term {number} again: {new}.\n  Then this freezes "
            "nothing for it."
        )
    return found


def _says_more(line: Line) -> bool:
    """Order lines about one entry: what it was says more than that it was the last."""
    from dpflow.ledger.witness_lines import HEAD

    return line.asked != HEAD


def _line_text(line: Line) -> str:
    """Say what a witnessed entry was, as far as its line tells."""
    if line.reservation:
        return f"reservation {line.reservation}" + (
            f" of run {line.run}" if line.run else ""
        )
    if not _says_more(line):
        return "all up to it"
    if line.decides:
        first = line.seq == 1
        return "a new term" if first else "a freeze or a tightened policy"
    return "a charge by hand"


def _say_loss(loss: Loss, *, repaired: bool) -> None:
    from dpflow.summary import amounts_text

    told = {line.seq: line for line in sorted(loss.missing, key=_says_more)}
    lines, count = [told[seq] for seq in sorted(told)], len(told)
    entries = "entry" if count == 1 else "entries"
    say(f"Account {plain(loss.account)} lacks {count} witnessed {entries}:")
    for line in lines[:_SHOWN]:
        say(f"  entry {line.seq}: {plain(_line_text(line))}")
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
