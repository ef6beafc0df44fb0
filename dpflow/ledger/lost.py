"""Decisions that a ledger forgot: freezes, tightened policies and new terms.

Their entries charge nothing, so no usage tells of them. Until someone decides anew, the
dataset is frozen: that is the strictest of what may have been decided.
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
