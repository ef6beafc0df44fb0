"""Repair: charge again what a ledger lacks. Nothing is ever lowered.

Each account is raised to its witnessed use, and by what this journal's own entries
added to it after the newest entry that ledger and witness have in common. Every charge
that was made before the repair ends in full (`settlement.is_before_repair`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dpflow.accounting.rules.tally import Tally
from dpflow.ledger.account_ids import Amounts
from dpflow.ledger.decisions.charges_by_hand import Posted
from dpflow.ledger.decisions.decision import Author, Decision
from dpflow.ledger.decisions.freezes import name_lost_term
from dpflow.ledger.decisions.gates import Gate, gate_at
from dpflow.ledger.decisions.reserve import without_empty
from dpflow.ledger.decisions.suggestions import in_windows, with_parts_near
from dpflow.ledger.requests import UNKNOWN
from dpflow.ledger.tables.loaded import Rows, sum_amounts
from dpflow.ledger.tables.rows import Account, PeopleStore, Posting


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
    raises = find_raises(rows, loss)
    after, postings = dict[str, Account](), dict[str, Posting]()
    answers, overdrawn = list[Posted](), set[str]()
    for name, amount, gate in raises:
        zero = (0,) * len(amount)
        before = rows.account(name) or Account(name, zero, zero)
        above = gate is not None and gate.overdrawn_by(Tally(amount))
        if above:
            before = before._replace(overdrawn=1)
            overdrawn.add(name)
        after[name] = before.posted(amount, zero)
        postings[name] = amount, zero
        named = (
            {"amount": str(amount)} if gate is None else gate.rule.named(Tally(amount))
        )
        answers.append(Posted(account=name, amount=named, overdrawn=above))
    people = {
        name: newest
        for name, newest in loss.people.items()
        if name not in rows.people or rows.people[name].newest != newest
    }
    decision = Decision(answer=tuple(answers), accounts=after)
    for name, newest in people.items():
        store = rows.people.get(name) or PeopleStore(name, UNKNOWN, newest)
        decision.changes.append(("put_people_store", store._replace(newest=newest)))
    epoch = max(dataset.epoch, loss.epoch) + 1
    row = dataset._replace(epoch=epoch, repaired_at=decision.number_after(dataset))
    body = {
        **author.facts,
        "reason": reason,
        "epoch": epoch,
        "witness": [loss.epoch, loss.number],
        "common": loss.common,
        **without_empty(overdrawn=sorted(overdrawn), people_lost=people),
    }
    command = f"repair {loss.dataset} {loss.epoch} {loss.number}"
    decision.append(row, "repair", author, command, postings=postings, body=body)
    is_lost = name_lost_term(rows, loss.dataset, after) or loss.term > dataset.term
    if dataset.frozen is None and (is_lost or not loss.decided):
        freeze_repaired(decision, author, loss, command, is_lost=bool(is_lost))
    return decision


def freeze_repaired(
    decision: Decision, author: Author, loss: Loss, command: str, *, is_lost: bool
) -> None:
    """Freeze a dataset that lost a term, or another decision of a person."""
    what = "a term" if is_lost else "a decision"
    why = {"who": author.facts.get("who", ""), "reason": f"{what} was lost"}
    frozen = {**why, "at": author.at}
    row = decision.datasets[loss.dataset]._replace(frozen=frozen)
    body = {**author.facts, **why, "frozen": frozen}
    decision.append(row, "freeze", author, command, body=body)


def find_raises(rows: Rows, loss: Loss) -> list[tuple[str, Amounts, Gate | None]]:
    """Return by how much each account is raised, and its gate; None if it is lost."""
    state: Any = rows
    raises: list[tuple[str, Amounts, Gate | None]] = []
    for name, witnessed in loss.used.items():
        row = rows.account(name)
        target = sum_amounts(witnessed, loss.added.get(name))
        used = (0,) * len(target)
        if row is not None:
            used = sum_amounts(row.settled, row.held)
        more = tuple(max(a - b, 0) for a, b in zip(target, used, strict=True))
        gate = gate_at(state, name)
        if row is not None and not any(more):
            continue
        if gate is not None and name in loss.added and any(more) and any(used):
            more = gate.rule.charged_late(Tally(used), Tally(more)).amounts
        raises.append((name, more, gate))
    return with_windows(rows, raises)


def with_windows(
    rows: Rows, raises: Sequence[tuple[str, Amounts, Gate | None]]
) -> list[tuple[str, Amounts, Gate | None]]:
    """Return the same with the sums of fullest windows in their gates."""
    state: Any = rows
    pairs = [
        (with_parts_near(state, gate), Tally(amount))
        for _, amount, gate in raises
        if gate is not None
    ]
    gates = {gate.id: gate for gate, _ in in_windows(pairs)}
    return [(name, amount, gates.get(name)) for name, amount, _ in raises]
