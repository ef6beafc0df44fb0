"""The journal as people read it: a line for each account that an entry moves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from dpflow.accounting.rules.tally import Tally
from dpflow.ledger.decision.gates import Gate
from dpflow.ledger.decision.refusal import amounts_text
from dpflow.ledger.decision.terms import BY_ITSELF
from dpflow.ledger.entry import Entry
from dpflow.ledger.journal import KINDS
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.records import AccountView
from dpflow.ledger.rows import split
from dpflow.ledger.views.accounts import gates_by_name, waiting
from dpflow.ledger.views.runs import bodies, root_keys
from dpflow.policy.population import PREFIX
from dpflow.rounding import number_from_text

FORFEITED = (
    "A forfeited reservation is one whose process ended without settling it. It stays "
    "charged in full, because the output of the step is unknown."
)


def people_lines(views: Sequence[AccountView]) -> list[str]:
    """Return a line where people have taken the budget, each for steps of their own."""
    text = "People have the budget: each pays for steps until their own part is used."
    for gate in (view.gate for view in views if view.kind == "dataset"):
        left = gate.left() if gate.rule.per_person else None
        if left is not None and not any(left.amounts):
            return [text]
    return []


def alert_text(account: str, threshold: str) -> str:
    """Say which share of what an account allows is used."""
    dataset, number, kind, name, part = split(account)
    percent = f"{float(100 * number_from_text(threshold)):g}%"
    where = f"{name} on {dataset}{f' in {part}' if part else ''}"
    if kind == "odometer":
        return f"the odometer of {where} has moved {percent} of the way to its halt"
    if kind == "flow":
        return f"{percent} of the share of {where} is used"
    if not number:
        return f"{percent} of the budget of {dataset} is used in windows around {part}"
    return f"{percent} of the budget of {account} is used"


def percent_text(fraction: float | None) -> str:
    """Write a share as a percentage."""
    return "-" if fraction is None else f"{fraction:.1%}"


def account_title(view: AccountView) -> str:
    """Say which account this is."""
    if view.kind == "partition" and view.gate.window and view.id:
        return f"{view.gate.window.length} parts around {view.name}"
    return kind_title(view.kind, view.dataset, view.name, view.gate.partition)


def kind_title(kind: str, dataset: str, name: str, partition: str = "") -> str:
    """Say which account of a dataset this is."""
    inside = f" in {partition}" if partition else ""
    titles = {
        "dataset": f"dataset {dataset}",
        "others": f"dataset {dataset} outside reserved shares",
        "population": dataset.replace("/", " ", 1),
        "partition": f"partition {name}",
        "flow": f"share of {name}{inside}",
    }
    return titles.get(kind, f"{kind} of {name}{inside}")


_DECISIONS = ("forfeit", *(n for n, k in KINDS.items() if k.decides or k.by_hand))


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEntry:
    """What an entry posts to an account, or says of it.

    Attributes:
        account: Id of the account; of an entry that posts nothing, its term's whole.
        seq: Number of the entry in the journal.
        settled_after: Settled amount of the account after the entry; empty if the
            entry posts nothing.
        left_after: Remaining budget after the entry; None without a budget or a change.
        body: Facts of the entry and of the reservation of its charge.
        at: When it was written; a label.
        fate: Of an open reservation: "running", or "forfeited" if its process has
            ended without settling it; else "".
        gate: The account as it stands now.
    """

    account: str
    seq: int
    kind: str
    reservation: str | None
    amount: Mapping[str, str]
    settled_after: Mapping[str, str]
    left_after: Mapping[str, str] | None
    body: Mapping[str, Any]
    at: str
    writer: str
    fate: str
    gate: Gate = field(repr=False)

    @property
    def opened_with(self) -> str:
        """The rule and budget with which a term was opened; it may be tighter now."""
        opened = self.body["term"]["opened"]
        limits = {name: opened[name] for name in ("epsilon", "delta")}
        return f"{self.gate.rule.theorem}: {amounts_text(limits)}"

    @property
    def outcome(self) -> str:
        """What came of the entry, in a few words."""
        body, kind = self.body, self.kind
        if kind == "refuse":
            return str(body.get("refusal")).removeprefix("Budget").lower()
        if kind == "settle":
            failed = body.get("outcome") == "failed"
            error, noise = body.get("error_type", "error"), body.get("noise", "unknown")
            return f"failed: {error}" if failed else f"noise {noise}"
        reason, who = str(body.get("reason") or ""), body.get("who")
        if kind == "open":
            by_hand = reason and reason not in BY_ITSELF
            texts = [self.opened_with, reason if by_hand else ""]
        elif kind == "reserve":
            texts = [self.fate]
        else:
            texts = [reason]
        return "; ".join(filter(None, [*texts, f"by {who}" if who else ""]))

    @property
    def message(self) -> str:
        """The outcome at length; mostly empty."""
        forfeited = self.fate == "forfeited" and self.kind == "reserve"
        return FORFEITED if forfeited else str(self.body.get("message") or "")


def history(
    ledger: Ledger,
    dataset: str | None = None,
    *,
    limit: int = 50,
    all_accounts: bool = False,
    decisions: bool = False,
) -> list[JournalEntry]:
    """Return the newest lines of the journal, newest first.

    Args:
        ledger: The ledger to read.
        dataset: Only of this dataset or population.
        limit: Largest number of lines.
        all_accounts: A line for each account that a charge posts to. Default: the
            account of the dataset, or of each part of the step, stands for them, and
            for a refusal the gate that refused.
        decisions: Only what people decided: no charge and no refusal of a step. Each
            has one line.
    """
    with ledger.storage.read() as reading:
        books = reading.books() if dataset is None else [dataset]
        # Of each book, the number of terms at the time of an entry.
        terms = {book: len(reading.names(f"term/{book}#")) for book in books}
        if decisions:
            entries = reading.rare(*_DECISIONS)
        else:
            roots = [key for book in books for key in root_keys(reading, book)]
            entries = reading.naming([*roots, *(f"book/{book}" for book in books)])

        def lines() -> Iterator[tuple[Entry, str]]:
            for entry in reading.whole(entries):
                names = _accounts_of(entry, terms)
                alone = [n for n in names if _stands_alone(entry, n, dataset)]
                if decisions:
                    names = sorted(alone or names, key=lambda n: (PREFIX in n, n))[:1]
                elif not all_accounts:
                    names = alone
                yield from ((entry, account) for account in names)
                if entry.kind == "open" and entry.body["book"] in terms:
                    terms[entry.body["book"]] -= 1

        shown = list(islice(lines(), limit))
        fates = {
            charge.id: "running" if alive else "forfeited"
            for charge, alive in waiting(ledger, reading)
        }
        gates = gates_by_name(reading, {account for _, account in shown})
        facts = [*bodies(reading, [entry for entry, _ in shown])]
    return [
        _line(entry, gates[account], body, fates.get(entry.charge or "", ""))
        for (entry, account), body in zip(shown, facts, strict=True)
    ]


def _accounts_of(entry: Entry, terms: Mapping[str, int]) -> list[str]:
    """Return the accounts of books that an entry is about.

    One that names no account is about the whole of the term at its time.
    """
    books = [book for book in entry.books if book in terms]
    names = entry.amounts or entry.body.get("accounts", ())
    own = sorted((name for name in names if split(name)[0] in books), reverse=True)
    return own or [f"{book}#{terms[book]}" for book in books]


def _stands_alone(entry: Entry, account: str, dataset: str | None) -> bool:
    """Say whether an account stands for all accounts of a charge."""
    kind = split(account)[2]
    if entry.kind == "refuse":
        # An odometer that halts the run as well is not the gate that refused.
        return bool(account == entry.body["account"])
    if kind == "population":
        return dataset is not None or KINDS[entry.kind].decides
    is_divided = any(split(name)[2] == "partition" for name in entry.amounts)
    return kind == ("partition" if is_divided else "dataset")


def _line(entry: Entry, gate: Gate, body: Mapping[str, Any], fate: str) -> JournalEntry:
    named, left = gate.rule.named, None
    amount = body.get("asked", {}) if gate.id == body.get("account") else {}
    settled: Mapping[str, str] = {}
    if gate.id in entry.postings:
        posted, done, held = map(Tally, entry.postings[gate.id])
        amount, settled = named(posted), named(done)
        # What remains in a window depends on its other parts.
        left = None if gate.window else gate._replace(used=done + held).left()
    return JournalEntry(
        account=gate.id,
        seq=entry.number,
        kind=entry.kind,
        reservation=entry.charge,
        amount=amount,
        settled_after=settled,
        left_after=None if left is None else named(left),
        body=body,
        at=entry.at,
        writer=entry.writer,
        fate=fate,
        gate=gate,
    )
