"""A ledger that forgot charges, made safe again.

The witness tells how much was charged. What the ledger lacks of it is charged again, in
full and on the same accounts, by an entry of kind `repair`; nothing is ever lowered,
and which outputs those charges stand for stays unknown. A dataset that lost a decision
is frozen. The repair names each lost entry by its hash, so that one which died before
it began the witness anew is not made a second time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import ConfigurationError, LedgerCorrupt
from dpflow.ledger.audit.lost_decisions import (
    LostDecisions,
    LostRelease,
    is_unused,
    lost_decisions,
    perhaps_lost,
)
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.decision.by_hand import Repair
from dpflow.ledger.decision.gates import covers_flow, gate_at, remainder
from dpflow.ledger.entry import Amounts
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.model import all_terms, terms_of_accounts
from dpflow.ledger.rows import account_key, split
from dpflow.ledger.state import State
from dpflow.ledger.storage.tables import Reading
from dpflow.ledger.witness.base import Witness
from dpflow.ledger.witness.lines import HEAD, KEPT, Line
from dpflow.ledger.witness.rollback_check import begin, missing
from dpflow.policy import Policy

_LISTED = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What the ledger lacks of one account.

    Attributes:
        account: Its id; the ledger may lack the whole account.
        missing: The entries that the witness saw.
        present: What the ledger says was used, in the theorem's currency; None if it
            lacks the account.
        repaired: What it will say, or says now that it was repaired.
    """

    account: str
    missing: tuple[Line, ...]
    present: Mapping[str, str] | None
    repaired: Mapping[str, str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The ledger beside its witness.

    Attributes:
        lines: How many entries the witness saw.
        losses: What the ledger lacks; empty if it lacks nothing.
        older: Whether the ledger is a copy from before a repair.
        epoch: How many repairs the ledger had.
        unsigned: How many signed checkpoints it lacks; they cannot be made again, and
            the next `sign` signs anew.
        lost: Decisions that it lacks; a repair freezes their datasets.
        again: How many lost entries a repair has charged that died before it began
            the witness anew.
    """

    lines: int
    losses: tuple[Loss, ...]
    older: bool
    epoch: int
    unsigned: int = 0
    lost: tuple[LostDecisions, ...] = ()
    again: int = 0

    @property
    def agrees(self) -> bool:
        """Whether the ledger holds all that was witnessed."""
        return not (self.losses or self.older or self.unsigned or self.again)

    @property
    def releases(self) -> tuple[LostRelease, ...]:
        """What was perhaps kept under the charges that are missing."""
        return perhaps_lost([line for loss in self.losses for line in loss.missing])

    @property
    def tells_all(self) -> bool:
        """Whether each missing charge is told, not only the newest of an account."""
        return all(e.kind != HEAD for loss in self.losses for e in loss.missing)


def compare(ledger: Ledger) -> Comparison:
    """Compare a ledger with its witness; nothing is changed.

    Raises:
        ConfigurationError: If the witness is waived.
        LedgerUnwitnessed: If there is none.
        LedgerCorrupt: If it is damaged.
    """
    witness = _witness(ledger)
    lines = witness.all_lines()
    with ledger.storage.read() as reading:
        return _compared(reading, lines, witness)[0]


def reconcile(
    ledger: Ledger,
    policies: Mapping[str, Policy],
    *,
    reason: str,
    others: Sequence[Line] = (),
) -> Comparison:
    """Charge again what the ledger lacks, and begin its witness anew.

    Args:
        ledger: The ledger.
        policies: To open terms again that the ledger lacks.
        reason: Why, for the journal.
        others: Further lines, of a ledger that this one replaces.

    Raises:
        ConfigurationError: If an account is gone, and no policy makes its term.
        LedgerUnwitnessed: If there is no witness.
        LedgerCorrupt: If what the ledger holds does not verify: a witness that is
            begun anew stands for all of it.
        LedgerUnavailable: If somebody else repaired the ledger meanwhile.
    """
    witness = ledger.watch.witness
    if bad := verify(ledger, witness=False).bad:
        msg = (
            f"the ledger {ledger.place} does not verify, so that nothing was charged "
            f"again. {str(bad[0])[:1].upper()}{str(bad[0])[1:]}. Put a good backup "
            "back, or see docs/operations.md, and reconcile that."
        )
        raise LedgerCorrupt(msg, ledger=ledger.place)
    lines = [*(() if witness is None else witness.all_lines()), *others]
    with ledger.storage.read() as reading:
        head = reading.head()[0]
        found, amounts, lost = _compared(reading, lines, witness)
    repairs = max(found.epoch, 0 if witness is None else witness.epoch) + 1
    if lost or found.older:
        ledger.ask(
            Repair(
                amounts=amounts,
                books=_flows(lost),
                reason=reason,
                head=head,
                before=found.epoch,
                repairs=repairs,
                lost=tuple(dict.fromkeys((line.number, _told(line)) for line in lost)),
                charges=tuple(
                    {"entry": line.number, "reservation": line.charge, "run": line.run}
                    for line in lost[:_LISTED]
                ),
                frozen={each.dataset: each.reason for each in found.lost},
                policies=policies,
            )
        )
    if witness is not None and not found.agrees:
        begin(ledger.storage, witness, anew=True)
    return found


def _flows(lost: Sequence[Line]) -> dict[str, list[str]]:
    """Return the flows whose charges were lost, by the books that they were on."""
    found: dict[str, dict[str, None]] = {b: {} for line in lost for b in line.books}
    for line in lost:
        for book in line.books if line.flow is not None else ():
            found[book][str(line.flow)] = None
    return {book: list(flows) for book, flows in found.items()}


def trust(ledger: Ledger) -> list[Line]:
    """Begin the ledger's witness on this machine with what the ledger holds now.

    Raises:
        ConfigurationError: If there is a witness already, or it is waived.
    """
    lines = begin(ledger.storage, _witness(ledger))
    return [line for line in lines if line.kind == HEAD]


def _witness(ledger: Ledger) -> Witness:
    if ledger.watch.witness is None:
        msg = (
            "the witness of this ledger is waived (witness = none), so there is "
            "nothing to compare it with. Set `witness` in [tool.dpflow] or "
            "DPFLOW_WITNESS to a place to have one."
        )
        raise ConfigurationError(msg)
    return ledger.watch.witness


def _compared(
    reading: Reading, lines: Sequence[Line], witness: Witness | None
) -> tuple[Comparison, dict[str, Amounts], list[Line]]:
    """Find what the ledger lacks of all that was told, and what would repair it."""
    lines = [*{_mark(line): line for line in lines}.values()]
    gone = missing(reading, lines)
    charged = {told for entry in reading.rare("repair") for told in entry.body["lost"]}
    lost = [line for line in gone if _told(line) not in charged]
    complete = _complete(lines, gone, witness)
    by_account: dict[str, list[Line]] = {}
    for line in lost:
        for account, used in line.used.items():
            if used:
                by_account.setdefault(account, []).append(line)
    books = sorted({book for line in lost for book in line.books})

    def needs(state: State) -> Iterable[str]:
        yield "repairs"
        yield from map(account_key, by_account)
        yield from terms_of_accounts(by_account)
        yield from all_terms(state, *books)

    state = reading.load(needs)
    amounts: dict[str, Amounts] = {}
    losses = [
        _loss(state, account, tuple(mine), amounts, complete=account in complete)
        for account, mine in by_account.items()
    ]
    decisions = []
    for book in books:
        mine = [line for line in lost if book in line.books]
        decided = lost_decisions(reading, state, book, mine)
        decisions += [] if decided is None else [decided]
        if not any(split(account)[0] == book for account in by_account):
            losses.append(_untold(state, book, mine))
    comparison = Comparison(
        lines=len(lines),
        losses=tuple(losses),
        older=witness is not None and state.repairs < witness.epoch,
        epoch=state.repairs,
        unsigned=sum(line.kind == "checkpoint" for line in lost),
        lost=tuple(decisions),
        again=len(gone) - len(lost),
    )
    return comparison, amounts, lost


def _complete(
    lines: Sequence[Line], gone: Sequence[Line], witness: Witness | None
) -> set[str]:
    """Return the accounts of which the witness has every missing line.

    It has those after a line that the ledger holds, as far as none was left out; or all
    of them, where no line stands for all before it.
    """
    whole = witness is None or witness.whole
    contiguous = lines if whole else lines[-KEPT:]
    away = {*map(_mark, gone)}
    joined = {n for line in contiguous if _mark(line) not in away for n in line.used}
    begun = {name for line in lines if line.kind == HEAD for name in line.used}
    every = {name for line in lines for name in line.used}
    return joined | ((every - begun) if whole else set())


def _told(line: Line) -> str:
    """Return what names an entry that was lost, or that and all before it."""
    return f"{line.hash} and all before" if line.kind == HEAD else line.hash


def _mark(line: Line) -> tuple[object, ...]:
    """Tell a line from others; its sums cannot be hashed."""
    return line.number, line.hash, line.kind


def _loss(
    state: State,
    account: str,
    gone: tuple[Line, ...],
    amounts: dict[str, Amounts],
    *,
    complete: bool,
) -> Loss:
    """Find what is to be charged to an account, and note it."""
    row, gate = state.account(account), gate_at(state, account)
    nothing = (0,) * len(gone[0].used[account])
    settled, held = (nothing, nothing) if row is None else (row.settled, row.held)
    entry = 0 if row is None else row.entry
    after = _repaired(account, entry, settled, held, gone, complete=complete)
    more = after - Tally(settled)
    needed = row is not None or not is_unused(gone, account)
    if needed and not _is_taken_off(state, account) and any(more.amounts):
        amounts[account] = more.amounts
    if gate is None or row is None:
        return Loss(account=account, missing=gone, present=None, repaired=None)
    present, repaired = map(gate.rule.named, (gate.used, after + gate.held))
    return Loss(account=account, missing=gone, present=present, repaired=repaired)


def _untold(state: State, book: str, gone: Sequence[Line]) -> Loss:
    """Return the loss of entries that moved no account."""
    account = f"{book}#{max(state.book(book).terms, 1)}"
    gate = gate_at(state, account)
    used = None if gate is None else gate.rule.named(gate.used)
    return Loss(account=account, missing=tuple(gone), present=used, repaired=used)


def _is_taken_off(state: State, account: str) -> bool:
    """Say whether an account is a flow's that may not use the dataset any more."""
    book, number, kind, name, _ = split(account)
    term = state.term(book, number)
    if term is None or kind not in ("flow", "odometer"):
        return False
    return not covers_flow(term.facts["pinned"], name)


def _repaired(
    account: str,
    entry: int,
    settled: Amounts,
    held: Amounts,
    gone: Sequence[Line],
    *,
    complete: bool,
) -> Tally:
    """Return the least that is surely not less than what was settled.

    Where the witness has every charge that is missing, their sum is added. Else, if the
    ledger is merely older, its use is raised to the last that was witnessed; and if it
    has gone another way since, that is added to it.
    """
    used = Tally(max(gone, key=lambda line: line.number).used[account])
    before = total = Tally(settled)
    whole = [line for line in gone if line.kind != HEAD]
    for line in whole if complete else ():
        total = total + Tally(line.amounts[account])
    if min(line.number for line in gone) > entry:
        return total.highest(remainder(used, Tally(held)))
    if not complete or len(whole) < len(gone):
        return total.highest(before + used)
    return total
