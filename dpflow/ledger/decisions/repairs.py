"""Repair: charge again what a ledger lacks. Nothing is ever lowered.

Each account is raised to its witnessed use, and by what this journal's own entries
added to it after the newest entry that ledger and witness have in common. Every charge
that was made before the repair ends in full (`settlement.is_before_repair`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dpflow.accounting.rules.tally import Tally
from dpflow.ledger.account_ids import Amounts
from dpflow.ledger.decisions.charges_by_hand import Raise, name_overdrawn, post_raises
from dpflow.ledger.decisions.decision import Author, Decision
from dpflow.ledger.decisions.freezes import append_freeze, name_lost_term
from dpflow.ledger.decisions.gates import gate_at, remainder
from dpflow.ledger.decisions.reserve import without_empty
from dpflow.ledger.decisions.windows import use_of
from dpflow.ledger.requests import UNKNOWN
from dpflow.ledger.tables.loaded import Rows, sum_amounts
from dpflow.ledger.tables.rows import PeopleStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What the witness holds of a dataset, and what the ledger lacks of it.

    Attributes:
        dataset: Name of the dataset.
        epoch: Epoch of the witness.
        number: Number of the entry that the witness shows.
        common: Newest number that witness and journal hold with one hash.
        used: Witnessed use, by account.
        added: What own entries after the common one added, by account.
        people: Newest step of each store of people that a lost entry paid.
        decided: Whether the journal has the newest decision of a person.
        term: Number of the newest witnessed term.
    """

    dataset: str
    epoch: int
    number: int
    common: int
    used: Mapping[str, Amounts] = field(default_factory=dict)
    added: Mapping[str, Amounts] = field(default_factory=dict)
    people: Mapping[str, str] = field(default_factory=dict)
    decided: bool = True
    term: int = 0


def decide_repair(rows: Rows, loss: Loss, reason: str, author: Author) -> Decision:
    """Charge again what a dataset lacks, once.

    Args:
        rows: Rows of the dataset, with all its accounts and stores of people.
        loss: What it lacks.
        reason: Why, for the journal.
        author: Who repairs.
    """
    dataset = rows.book(loss.dataset)
    command = f"repair {loss.dataset} {loss.epoch} {loss.number}"
    decision = Decision(author._replace(command=command))
    post_raises(decision, rows, find_raises(rows, loss))
    people = dict[str, str]()
    for name, newest in loss.people.items():
        store = rows.people.get(name) or PeopleStore(name, UNKNOWN, "")
        if store.newest != newest:
            people[name] = newest
            decision.changes.append(("put_people_store", store._replace(newest=newest)))
    epoch = max(dataset.epoch, loss.epoch) + 1
    row = dataset._replace(epoch=epoch, repaired_at=decision.number_after(dataset))
    stated = {"reason": reason, "epoch": epoch, "common": loss.common}
    body = {**author.provenance, **stated, "witness": [loss.epoch, loss.number]}
    overdrawn = name_overdrawn(decision, dataset.name)
    body |= without_empty(overdrawn=overdrawn, people_lost=people)
    posted = decision.postings.get(dataset.name)
    decision.append(row, "repair", postings=posted, body=body)
    further = decision.accounts
    is_lost = name_lost_term(rows, loss.dataset, further) or loss.term > dataset.term
    if dataset.frozen is None and (is_lost or not loss.decided):
        reason = f"{'a term' if is_lost else 'a decision'} was lost"
        append_freeze(decision, decision.datasets[dataset.name], reason)
    return decision


def find_raises(rows: Rows, loss: Loss) -> list[Raise]:
    """Return by how much each account is raised; an absent one perhaps by nothing."""
    raises = list[Raise]()
    for name, witnessed in loss.used.items():
        row, added = rows.account(name), loss.added.get(name)
        target = Tally(sum_amounts(witnessed, added))
        used = target.times(0) if row is None else use_of(row)
        more = remainder(target, used)
        if row is None or any(more.amounts):
            late = added is not None
            raises.append(Raise(name, gate_at(rows, name), more, late=late))
    return raises
