"""A ledger that forgot charges, made safe again.

The witness tells how much was charged. What the ledger lacks of it is charged again, in
full and on the same accounts, by entries of kind `repair`; nothing is ever lowered, and
which outputs those charges stand for stays unknown. A dataset that lost a decision is
frozen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from dpflow.accounting.tally import Tally
from dpflow.exceptions import (
    ConfigurationError,
    LedgerCorrupt,
    PolicyChanged,
    PolicyNotApplied,
)
from dpflow.ledger.account import Account, append, partition_of, read_account, remainder
from dpflow.ledger.checkpoints import WITNESSED
from dpflow.ledger.database import Session
from dpflow.ledger.identity import check_epoch, epoch_of
from dpflow.ledger.kernel import Ledger
from dpflow.ledger.lost import (
    LostDecisions,
    LostRelease,
    dataset_of,
    freeze_again,
    lost_decisions,
    nothing_used,
    number_of,
    perhaps_lost,
)
from dpflow.ledger.terms import (
    Term,
    all_terms,
    gate_place,
    governing_term,
    newest_term,
    open_gate,
    taken_off,
)
from dpflow.ledger.watch import begin_anew, beginning, closings, heads, missing
from dpflow.ledger.witness_base import WitnessBase
from dpflow.ledger.witness_lines import HEAD, Line
from dpflow.ledger.writer import writer
from dpflow.policy import Policy
from dpflow.policy_population import PREFIX

_LISTED = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What the ledger lacks of one account.

    Attributes:
        account: Its id; the ledger may lack the whole account.
        missing: The charges that the witness saw.
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
        lines: How many charges the witness saw.
        losses: What the ledger lacks; empty if it lacks nothing.
        older: Whether the ledger is a copy from before a repair.
        epoch: How many repairs the ledger had.
        unsigned: How many signed checkpoints it lacks; they cannot be made again, and
            the next `verify` signs anew.
        lost: Decisions that it lacks; a repair freezes their datasets.
    """

    lines: int
    losses: tuple[Loss, ...]
    older: bool
    epoch: int
    unsigned: int = 0
    lost: tuple[LostDecisions, ...] = ()

    @property
    def agrees(self) -> bool:
        """Whether the ledger holds all that was witnessed."""
        return not (self.losses or self.older or self.unsigned)

    @property
    def releases(self) -> tuple[LostRelease, ...]:
        """What was perhaps kept under the charges that are missing."""
        return perhaps_lost([e for loss in self.losses for e in loss.missing])

    @property
    def tells_all(self) -> bool:
        """Whether each missing charge is told, not only the newest of an account."""
        return all(e.asked != HEAD for loss in self.losses for e in loss.missing)


def compare(ledger: Ledger) -> Comparison:
    """Compare a ledger with its witness; nothing is changed.

    Raises:
        ConfigurationError: If the witness is waived.
        LedgerUnwitnessed: If there is none.
        LedgerCorrupt: If it is damaged.
    """
    witness = _witness(ledger)
    lines = witness.all_lines()
    with ledger.database.read() as session:
        epoch = int(session.rows("read_ledger")[0]["epoch"])
        losses, lacking = [], _by_account(session, lines)
        for account_id, (every, gone) in lacking.items():
            account = read_account(session, account_id)
            after = None
            if account is not None:
                after = _repaired(account, every, gone, whole=witness.whole)
            losses.append(_loss(account_id, gone, account, after))
        unsigned = _lost_checkpoints(session, lines)
        lost = _lost(session, lacking)
    return Comparison(
        lines=len(_charges(lines)),
        losses=tuple(losses),
        older=epoch < witness.epoch,
        epoch=epoch,
        unsigned=unsigned,
        lost=lost,
    )


def reconcile(
    ledger: Ledger,
    policies: Mapping[str, Policy],
    *,
    because: str,
    others: Sequence[Line] = (),
) -> Comparison:
    """Charge again what the ledger lacks, and begin its witness anew.

    A dataset is frozen if a freeze or a tightened policy of it was lost, or a term that
    nobody has opened again: its decision would else be undone by a lost file.

    Args:
        ledger: The ledger.
        policies: To open accounts again that it lacks.
        because: Why, for the journal.
        others: What is known from elsewhere to have been charged.

    Raises:
        ConfigurationError: If an account that is gone cannot be opened again.
        LedgerUnavailable: If somebody else repaired it just now.
        LedgerError: As `compare`.
    """
    witness, before = ledger.watch.witness, epoch_of(ledger.database)
    lines = [*(() if witness is None else witness.all_lines()), *others]
    known_epoch = 0 if witness is None else witness.epoch
    datasets = {dataset_of(line.account) for line in _charges(lines)}
    losses: list[Loss] = []
    facts = {**ledger.conditions.facts, "because": because}
    with ledger.writing(sorted(datasets)) as session:
        epoch = check_epoch(session, ledger.place, before)
        whole = witness is None or witness.whole
        lacking = _by_account(session, lines)
        for account_id, (every, gone) in lacking.items():
            account, after = read_account(session, account_id), None
            if account is None and _is_needed(session, account_id, gone):
                account = _opened(session, account_id, policies, facts)
            if account is not None:
                after = _repaired(account, every, gone, whole=whole)
                if not nothing_used(gone):
                    _append_repair(session, account, after, gone, facts)
            losses.append(_loss(account_id, gone, account, after))
        lost = _lost(session, lacking)
        for each in lost:
            freeze_again(session, each, facts)
        found = Comparison(
            lines=len(_charges(lines)),
            losses=tuple(losses),
            older=epoch < known_epoch,
            epoch=epoch,
            unsigned=_lost_checkpoints(session, lines),
            lost=lost,
        )
        if not found.agrees:
            epoch = max(epoch, known_epoch) + 1
            session.change("set_epoch", epoch=epoch)
        begun = beginning(session)
    if witness is not None and not found.agrees:
        begin_anew(ledger.database, witness, epoch, begun)
    return found


def trust(ledger: Ledger) -> list[Line]:
    """Begin the ledger's witness on this machine with what the ledger holds now.

    Raises:
        ConfigurationError: If there is a witness already, or it is waived.
    """
    witness = _witness(ledger)
    with ledger.database.read() as session:
        epoch = int(session.rows("read_ledger")[0]["epoch"])
        begun, every = heads(session), beginning(session)
    witness.enrol(epoch, every)
    return begun


def _witness(ledger: Ledger) -> WitnessBase:
    if ledger.watch.witness is None:
        msg = (
            "the witness of this ledger is waived (witness = none), so there is "
            "nothing to compare it with. Set `witness` in [tool.dpflow] or "
            "DPFLOW_WITNESS to a place to have one."
        )
        raise ConfigurationError(msg)
    return ledger.watch.witness


def _by_account(
    session: Session, lines: Iterable[Line]
) -> dict[str, tuple[list[Line], list[Line]]]:
    """Return the lines and the missing lines of each account that lacks some."""
    found: dict[str, tuple[list[Line], list[Line]]] = {}
    for line in dict.fromkeys(_charges(lines)):
        found.setdefault(line.account, ([], []))[0].append(line)
    for every, gone in found.values():
        gone.extend(missing(session, every))
    return {account: both for account, both in found.items() if both[1]}


def _lost(
    session: Session, lacking: Mapping[str, tuple[list[Line], list[Line]]]
) -> tuple[LostDecisions, ...]:
    return lost_decisions(session, {name: gone for name, (_, gone) in lacking.items()})


def _charges(lines: Iterable[Line]) -> list[Line]:
    """Return the lines about accounts, without those about their checkpoints."""
    return [line for line in lines if not line.account.startswith(WITNESSED)]


def _lost_checkpoints(session: Session, lines: Iterable[Line]) -> int:
    told = [line for line in lines if line.account.startswith(WITNESSED)]
    return len(missing(session, told))


def _repaired(
    account: Account, every: Sequence[Line], gone: Sequence[Line], *, whole: bool
) -> Tally:
    """Return the least that is surely not less than what was settled.

    Where the witness has every charge that is missing, their sum is added. Else, if the
    ledger is merely older, its use is raised to the last that was witnessed; and if it
    has gone another way since, that is added to it.
    """
    newest = max(gone, key=lambda line: line.seq)
    used = Tally.from_text(newest.used)
    forked = min(line.seq for line in gone) <= account.seq
    begun = any(line.asked == HEAD for line in every)
    unknown = any(line.asked == HEAD for line in gone)
    # The lines after a charge that is here are all there; a compacted witness keeps
    # decisions without the charges between them.
    joined = any(not line.decides for line in {*every} - {*gone})
    complete = joined or (whole and not begun)
    total = account.settled
    if complete:
        for line in gone:
            if line.asked != HEAD:
                total = total + Tally.from_text(line.asked)
    if not forked:
        return total.highest(remainder(used, account.held))
    if unknown or not complete:
        return total.highest(account.settled + used)
    return total


def _append_repair(
    session: Session,
    account: Account,
    after: Tally,
    gone: Sequence[Line],
    facts: Mapping[str, Any],
) -> None:
    charges = [
        {"entry": line.seq, "reservation": line.reservation, "run": line.run}
        for line in gone[:_LISTED]
    ]
    append(
        session,
        account,
        "repair",
        after - account.settled,
        settled=after,
        held=account.held,
        reservation=None,
        run=None,
        body={
            **facts,
            "policy": {
                term.dataset: term.policy_hash
                for term in all_terms(session, account.dataset)
                if term.number == account.term
            },
            "missing": len(gone),
            "charges": charges,
            "step": "ledger reconcile",
            "release_key": None,
        },
        writer=writer(),
    )


def _opened(
    session: Session,
    account_id: str,
    policies: Mapping[str, Policy],
    facts: Mapping[str, Any],
) -> Account:
    """Open an account again that the ledger lacks, by its own copy if it has one."""
    dataset = dataset_of(account_id)
    policy, term = policies.get(dataset), _term_of(session, account_id)
    if term is None and policy is not None:
        with suppress(PolicyChanged, PolicyNotApplied):
            term = governing_term(session, policy, applies=True, facts=facts)
    kind, name, part = _parts(account_id)
    if term is not None and gate_place(term, kind, name, part) == account_id:
        account = open_gate(session, term, kind, name, facts, partition=part)
        if account is not None:
            return account
    msg = (
        f"the ledger lacks account {account_id!r}, and no policy makes it. Put the "
        f"policy file of dataset {dataset!r} back that was in force at that time. If "
        f"the ledger lacks its whole term, apply it again: `dpflow policy apply "
        f"{dataset} --new-term --because TEXT`."
    )
    raise ConfigurationError(msg)


def _is_needed(session: Session, account_id: str, gone: Sequence[Line]) -> bool:
    """Say whether an account that is gone has to be opened again, to be charged.

    Not if nothing was used there: the freeze of its dataset stands for the rest. And
    not if no step can ask it any more.
    """
    term = _term_of(session, account_id)
    if term is not None and taken_off(term.pinned, *_parts(account_id)[:2]):
        return False
    newest = newest_term(session, dataset_of(account_id))
    return not nothing_used(gone) or newest is None


def _term_of(session: Session, account_id: str) -> Term | None:
    """Return the term that an account belongs to, if the ledger has it."""
    terms = all_terms(session, dataset_of(account_id))
    return next((t for t in terms if t.number == number_of(account_id)), None)


def _parts(account_id: str) -> tuple[str, str, str]:
    """Return kind, name and partition of an account, as its id tells them."""
    place = account_id.partition("#")[2].partition("/")[2]
    partition = partition_of(account_id)
    if partition:
        place = place.removeprefix(f"partition/{partition}").removeprefix("/")
        if not place:
            return "partition", partition, ""
    kind, _, name = place.partition("/")
    if not kind:
        kind = "population" if account_id.startswith(PREFIX) else "dataset"
    return kind, name, partition


def _loss(
    account_id: str, gone: Sequence[Line], account: Account | None, after: Tally | None
) -> Loss:
    present = repaired = None
    if account is not None and after is not None:
        present = account.rule.named(account.settled + account.held)
        repaired = account.rule.named(after + account.held)
    return Loss(
        account=account_id, missing=tuple(gone), present=present, repaired=repaired
    )


def newest_lines(ledger: Ledger) -> list[Line]:
    """Return what a witness of a ledger would begin with, as `reconcile` takes it.

    Raises:
        LedgerCorrupt: If an account does not agree with its newest entry.
    """
    with ledger.database.read() as session:
        found = heads(session)
        for line in found:
            if read_account(session, line.account) is None:
                msg = f"account {line.account!r} is not there"
                raise LedgerCorrupt(msg)
        return [*found, *closings(session)]
