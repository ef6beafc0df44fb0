"""What a ledger forgot besides charges: decisions, and outputs that it had kept.

Freezes, tightened policies and new terms charge nothing, so no usage tells of them.
Until someone decides anew, the dataset is frozen: that is the strictest of what may
have been decided. An output that was kept is drawn again when it is asked for again,
with other noise and at a charge of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpflow.ledger.database import Session
from dpflow.ledger.freeze import freeze_accounts
from dpflow.ledger.terms import newest_term
from dpflow.ledger.witness_lines import Line


@dataclass(frozen=True, slots=True, kw_only=True)
class LostDecisions:
    """What a ledger forgot about one dataset, besides charges.

    Attributes:
        gates: Whether a freeze or a tightened policy is among it; no line tells which.
        terms: Numbers of the lost terms that nobody has opened again since.
    """

    dataset: str
    gates: bool
    terms: tuple[int, ...]

    @property
    def because(self) -> str:
        """The reason of the freeze that makes up for it."""
        lost = ["a freeze was lost, or a tightened policy"] if self.gates else []
        lost += [f"term {number} was lost" for number in self.terms]
        return f"repaired: {', and '.join(lost)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LostRelease:
    """An output that a ledger kept, or may have kept, and does not keep any more.

    Attributes:
        reservation: The charge that it was made under.
        dataset: What it was made of; several are parted by commas.
        run: The flow run, if only the witness tells of it.
        id: The start of its keyed digest; None where only the witness tells of it,
            which knows the charge and not what came of it.
        key: Its release key for people; empty for a replay within one flow run.
        step: Name of the step.
        digest: sha256 of the encoded value.
        at: When it was claimed.
    """

    reservation: str
    dataset: str
    run: str | None = None
    id: str | None = None
    key: str | None = None
    step: str | None = None
    digest: str | None = None
    at: str | None = None


def kept_releases(session: Session) -> tuple[LostRelease, ...]:
    """Return what would be lost with a ledger: all that it can replay."""
    names = [
        row["release_key"]
        for row in session.rows("list_releases")
        if row["size"] is not None and row["state"] == "settled"
    ]
    rows = [session.rows("read_release", release_key=name)[0] for name in names]
    return tuple(
        LostRelease(
            reservation=row["reservation"],
            dataset=row["dataset"],
            id=row["release_key"][:12],
            key=row["key_text"],
            step=row["step"],
            digest=row["digest"],
            at=row["at"],
        )
        for row in rows
    )


def perhaps_lost(gone: Sequence[Line]) -> tuple[LostRelease, ...]:
    """Return what may have been kept of the charges that a ledger lacks."""
    runs = {line.reservation: line.run for line in gone if line.reservation}
    datasets: dict[str, dict[str, None]] = {name: {} for name in runs}
    for line in gone:
        if line.reservation:
            datasets[line.reservation][dataset_of(line.account)] = None
    return tuple(
        LostRelease(reservation=name, dataset=",".join(datasets[name]), run=run)
        for name, run in runs.items()
    )


def lost_decisions(
    session: Session, gone: Mapping[str, Sequence[Line]]
) -> tuple[LostDecisions, ...]:
    """Return what was lost of each dataset that lost a decision.

    A ledger that has no term of a dataset is opened again by its policy file, so that
    only its later decisions count.

    Args:
        session: The caller's transaction.
        gone: The lines that the ledger lacks, by account.
    """
    gates: dict[str, bool] = {}
    terms: dict[str, set[int]] = {}
    for account, lines in gone.items():
        dataset, number = dataset_of(account), number_of(account)
        newest = newest_term(session, dataset)
        if newest is not None and number > newest.number:
            terms.setdefault(dataset, set()).add(number)
        if any(line.decides and line.seq > 1 for line in lines):
            gates[dataset] = True
    return tuple(
        LostDecisions(
            dataset=dataset,
            gates=gates.get(dataset, False),
            terms=tuple(sorted(terms.get(dataset, ()))),
        )
        for dataset in sorted({*gates, *terms})
    )


def freeze_again(
    session: Session, lost: LostDecisions, facts: Mapping[str, Any]
) -> None:
    """Freeze the accounts of a dataset's newest term that are not frozen."""
    term = newest_term(session, lost.dataset)
    if term is not None:
        policy = {term.dataset: term.policy_hash}
        body = {**facts, "because": lost.because, "policy": policy}
        freeze_accounts(session, term, body)


def nothing_used(lines: Sequence[Line]) -> bool:
    """Say whether lines about an account tell of no charge, not even of nothing."""
    return all(line.unused and not line.reservation for line in lines)


def dataset_of(account: str) -> str:
    """Return the dataset that an account's id speaks of."""
    return account.partition("#")[0]


def number_of(account: str) -> int:
    """Return the number of the term that an account's id speaks of."""
    return int(account.partition("#")[2].partition("/")[0])
