"""The repair of a ledger that lost charges.

The witness says how much was charged. What the ledger lacks of it is charged again, in
full and on the same accounts, by an entry of kind `repair`; nothing is ever lowered,
and which outputs those charges stand for stays unknown. A lost freeze, tightening or
term charges nothing, so no usage shows it: the dataset is frozen until an operator
decides anew. The repair names each lost entry by its hash, so that one which died
before it began the witness anew is not repeated.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import ConfigurationError
from dpflow.ledger.audit.verify import verified
from dpflow.ledger.decision.gates import covers_flow, gate_at, remainder
from dpflow.ledger.decision.office import Repair
from dpflow.ledger.decision.terms import check_currencies
from dpflow.ledger.entry import Amounts
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.model import all_terms, terms_of_accounts
from dpflow.ledger.rows import OF_FLOW, account_key, split
from dpflow.ledger.state import State
from dpflow.ledger.storage.tables import Reading
from dpflow.ledger.views.releases import read_releases
from dpflow.ledger.witness.base import KEPT, Line, Witness, currencies_of
from dpflow.ledger.witness.rollback_check import begin, missing
from dpflow.policy import Policy


@dataclass(frozen=True, slots=True)
class Loss:
    """What the ledger lacks of one account.

    Attributes:
        account: Its id; the ledger may lack the whole account.
        missing: Lines of the missing entries.
        present: Use by the ledger, in the theorem's currency; None if it lacks the
            account.
        repaired: Use after a repair.
        amounts: What a repair charges.
    """

    account: str
    missing: Sequence[Line]
    present: Mapping[str, str] | None
    repaired: Mapping[str, str] | None
    amounts: Amounts = field(default=(), repr=False)


class LostDecisions(NamedTuple):
    """Missing decisions about one dataset.

    Attributes:
        gates: Whether a freeze or a tightened policy is among them.
        terms: Numbers of the lost terms that were not opened again since.
    """

    dataset: str
    gates: bool
    terms: tuple[int, ...]

    @property
    def reason(self) -> str:
        """The reason of the freeze that makes up for it."""
        lost = ["a freeze was lost, or a tightened policy"] if self.gates else []
        lost += [f"term {number} was lost" for number in self.terms]
        return f"repaired: {', and '.join(lost)}"


class LostRelease(NamedTuple):
    """An output that a ledger stored, or may have stored, and does not store any more.

    A step that needs it draws again, with other noise and at a charge of its own.

    Attributes:
        reservation: The charge of its step.
        dataset: Its dataset; several are separated by commas.
        run: The flow run, if only the witness shows it.
        id: The start of its keyed digest; None if only the witness shows its charge.
        key: Its release key for people; empty for a replay within one flow run.
        step: Name of the step.
        digest: HMAC of the encoded value.
    """

    reservation: str
    dataset: str
    run: str | None = None
    id: str | None = None
    key: str | None = None
    step: str | None = None
    digest: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The ledger and its witness, compared.

    Attributes:
        lines: Number of witnessed entries.
        losses: What the ledger lacks of its accounts.
        older: Whether the ledger is a copy from before a repair.
        epoch: Number of repairs of the ledger.
        lost: Missing decisions; a repair freezes their datasets.
        again: Number of missing entries that a repair has charged which died before it
            began the witness anew.
        lacking: The lines that a repair names.
        tells_all: Whether there is a line of each missing charge, not only of the
            newest.
    """

    lines: int
    losses: tuple[Loss, ...]
    older: bool
    epoch: int
    lost: tuple[LostDecisions, ...]
    again: int
    lacking: Sequence[Line] = field(repr=False)
    tells_all: bool = field(repr=False)

    @property
    def agrees(self) -> bool:
        """Whether the ledger holds all that was witnessed."""
        return not (self.lacking or self.older or self.again)

    @property
    def releases(self) -> tuple[LostRelease, ...]:
        """Outputs that the missing charges may have had."""
        made = (line for line in self.lacking if line.kind == "reserve")
        return tuple(LostRelease(str(e.charge), ",".join(e.books), e.run) for e in made)


def kept_releases(reading: Reading) -> tuple[LostRelease, ...]:
    """Return the outputs that would be lost with a ledger: all that it can replay."""
    return tuple(
        LostRelease(e.row.charge, e.dataset, None, e.id, e.key, e.step, e.digest)
        for e in read_releases(reading)
        if e.size is not None and e.state == "settled"
    )


def compare(ledger: Ledger) -> Comparison:
    """Compare a ledger with its witness; nothing is changed.

    Raises:
        ConfigurationError: If the witness is waived, or the missing charges of a term
            are in another currency.
        LedgerUnwitnessed: If there is no witness.
        LedgerCorrupt: If it is damaged.
    """
    witness = _witness(ledger)
    lines = witness.all_lines()
    with ledger.storage.read() as reading:
        return _compared(reading, lines, (), witness)


def reconcile(
    ledger: Ledger, policies: Mapping[str, Policy], *, reason: str
) -> Comparison:
    """Verify a ledger and charge again what it lacks, as `charge_again` does.

    Raises:
        LedgerCorrupt: If what the ledger holds does not verify: a witness that is
            begun anew stands for all of it.
    """
    verified(ledger)
    return charge_again(ledger, policies, reason=reason)


def charge_again(
    ledger: Ledger,
    policies: Mapping[str, Policy],
    *,
    reason: str,
    others: Sequence[Line] = (),
) -> Comparison:
    """Charge again what a verified ledger lacks, and begin its witness anew.

    Args:
        ledger: The ledger.
        policies: To open terms again that the ledger lacks.
        reason: Why, for the journal.
        others: Further lines, of a ledger that this one replaces.

    Raises:
        ConfigurationError: If an account is missing, and no policy makes its term, or
            the missing charges of a term are in another currency.
        LedgerUnwitnessed: If there is no witness.
        LedgerUnavailable: If another process repaired the ledger meanwhile.
    """
    witness = ledger.watch.witness
    lines = () if witness is None else witness.all_lines()
    with ledger.storage.read() as reading:
        head = reading.head()[0]
        gaps = _compared(reading, lines, others, witness)
    if gaps.lacking or gaps.older:
        flows = defaultdict[str, dict[str, None]](dict)
        paid: dict[str, str | None] = {}
        for line in sorted(gaps.lacking):
            for book in line.books:
                flows[book] |= {} if line.flow is None else {line.flow: None}
                if line.kind in ("pay", "repair"):
                    # A repair stands for steps that people paid, and names none.
                    paid[book] = line.charge
                elif line.charge is not None or not gaps.tells_all:
                    # Perhaps one that people paid, whose own line was compacted away.
                    paid.setdefault(book, None)
        ledger.ask(
            Repair(
                paid=paid,
                amounts={e.account: e.amounts for e in gaps.losses if any(e.amounts)},
                books={book: list(names) for book, names in flows.items()},
                reason=reason,
                head=head,
                repairs=max(gaps.epoch, ledger.watch.epoch) + 1,
                lost=tuple((line.number, line.hash) for line in gaps.lacking),
                frozen={each.dataset: each.reason for each in gaps.lost},
                policies=policies,
                currencies=currencies_of(gaps.lacking),
            )
        )
    if witness is not None and not gaps.agrees:
        begin(ledger.storage, witness, anew=True)
    return gaps


def trust(ledger: Ledger) -> list[Line]:
    """Begin the ledger's witness on this machine with what the ledger holds now.

    Raises:
        ConfigurationError: If there is a witness already, or it is waived.
    """
    return begin(ledger.storage, _witness(ledger))


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
    reading: Reading,
    witnessed: Sequence[Line],
    others: Sequence[Line],
    witness: Witness | None,
) -> Comparison:
    """Find the lines without an entry, and what would repair the ledger."""
    # The first three fields of a line say which it is.
    lines = [*{line[:3]: line for line in (*witnessed, *others)}.values()]
    away = missing(reading, lines)
    charged = {name for entry in reading.rare("repair") for name in entry.body["lost"]}
    lacking = [line for line in away if line.hash not in charged]
    by_account, by_book = defaultdict[str, list[Line]](list), dict[str, list[Line]]()
    for line in lacking:
        for account in (name for name, used in line.used.items() if used):
            by_account[account].append(line)
        for book in line.books:
            by_book.setdefault(book, []).append(line)

    def needs(state: State) -> Iterable[str]:
        yield "repairs"
        yield from map(account_key, by_account)
        yield from terms_of_accounts(state, by_account)
        yield from all_terms(state, *by_book)

    state = reading.load(needs)
    check_currencies(state, currencies_of(lacking))
    # All missing lines of an account are here after a line that the ledger holds, as
    # far as compaction left none out.
    last, marks = (witnessed or others)[-KEPT:], {line[:3] for line in away}
    whole = len(last) < KEPT
    joined = {n for e in last if e[:3] not in marks for n in e.used}
    first = min((line.number for line in lacking), default=0)
    losses = tuple(
        _loss(state, account, mine, first, whole=whole or account in joined)
        for account, mine in by_account.items()
    )
    decisions = [_lost_decisions(state, *item) for item in sorted(by_book.items())]
    return Comparison(
        lines=len(lines),
        losses=losses,
        older=witness is not None and state.repairs < witness.epoch,
        epoch=state.repairs,
        lost=tuple(each for each in decisions if each.gates or each.terms),
        again=len(away) - len(lacking),
        lacking=lacking,
        tells_all=whole or by_account.keys() <= joined,
    )


def _lost_decisions(state: State, book: str, lacking: Sequence[Line]) -> LostDecisions:
    """Return the lost decisions about a dataset.

    A ledger that has no term of a dataset is opened again by its policy file, so that
    only its later decisions count.
    """
    newest = state.book(book).terms
    places = {split(name)[:2] for line in lacking for name in line.used}
    lost = sorted(n for name, n in places if name == book and n > newest > 0)
    # A policy file opens the first term again.
    gates = any(
        line.decides
        and (line.kind != "open" or (not newest and f"{book}#1" not in line.used))
        for line in lacking
    )
    return LostDecisions(book, gates, tuple(lost))


def _loss(
    state: State, account: str, lacking: Sequence[Line], first: int, *, whole: bool
) -> Loss:
    """Return the least that surely makes up for what an account lacks.

    Where the witness has every missing charge, it is their sum. Else, if the ledger is
    merely older, its use is raised to the last that was witnessed; and if it has taken
    another way since, that is added to it.
    """
    used = Tally(max(lacking, key=lambda line: line.number).used[account])
    row, gate, more = state.account(account), gate_at(state, account), used.times(0)
    settled, held = (more, more) if row is None else map(Tally, (row.settled, row.held))
    for line in lacking if whole else ():
        more = more + Tally(line.amounts[account])
    if row is None or row.entry < first:
        more = more.highest(remainder(remainder(used, held), settled))
    elif not whole:
        more = more.highest(used)
    book, number, kind, name, _ = split(account)
    term = state.term(book, number)
    # A flow that may not use the dataset any more has no gate that counts.
    closed = kind in OF_FLOW and term and not covers_flow(term.facts["pinned"], name)
    amounts = () if closed else more.amounts
    if gate is None or row is None:
        return Loss(account, lacking, None, None, amounts)
    named = gate.rule.named
    return Loss(account, lacking, named(gate.used), named(gate.used + more), amounts)
