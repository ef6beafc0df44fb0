"""The journal as people read it: a line for each account that an entry changes."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from dpflow.accounting.rules.tally import Tally
from dpflow.ledger.account_ids import Amounts, split
from dpflow.ledger.decisions.decision import negative
from dpflow.ledger.decisions.gates import Gate
from dpflow.ledger.decisions.refusals import amounts_text
from dpflow.ledger.decisions.terms import BY_ITSELF
from dpflow.ledger.tables.loaded import sum_amounts
from dpflow.ledger.tables.rows import Entry, Posting
from dpflow.ledger.views.accounts import AccountView
from dpflow.ledger.views.reading import (
    ENDLESS,
    Body,
    Reading,
    Source,
    describe_entry,
    merge_newest,
    open_reading,
    pages,
    read_postings,
)
from dpflow.policy.population import PREFIX
from dpflow.rounding import number_from_text

#: A share with no digit but zeros at one decimal place.
_SMALL = 0.0005
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
    budget = kind_title(kind, dataset, name or part)
    of = f" of {dataset}" if part else ""
    return f"{percent} of the budget of {budget}{of} is used in term {number}"


def percent_text(fraction: float | None) -> str:
    """Write a share as a percentage; a small one has two digits, too."""
    if fraction is None:
        return "-"
    is_small = 0 < fraction < _SMALL
    return f"{100 * fraction:.2g}%" if is_small else f"{fraction:.1%}"


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
        share: Share of the account's budget that the entry posts; None without one.
        left_share: Share that remains after the entry; None without one.
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
    share: float | None = field(default=None, repr=False)
    left_share: float | None = field(default=None, repr=False)

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
            error = body.get("error") or body.get("error_type", "error")
            noise = body.get("noise", "unknown")
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


#: Kinds of decisions of people that change no account.
DECIDES = ("open", "tighten", "access", "freeze", "unfreeze", "upgrade")
#: Number of entries of a dataset that are read together, at least.
_PAGE = 64


def account_title(view: AccountView) -> str:
    """Say which account this is."""
    if view.kind == "partition" and view.gate.window and view.id:
        full = getattr(view, "full_windows", 0)
        count = f" ({full} window{'' if full == 1 else 's'} full)" if full else ""
        return f"{view.gate.window.length} parts up to {view.name}{count}"
    return kind_title(view.kind, view.dataset, view.name, view.gate.partition)


#: An entry with one account that it is about.
Line = tuple[Entry, str]
#: Number of an entry, and an account that it posts to.
Place = tuple[int, str]


def history(
    source: Source,
    dataset: str | None = None,
    *,
    limit: int = 50,
    all_accounts: bool = False,
    decisions: bool = False,
) -> list[JournalEntry]:
    """Return the newest lines of the journals, newest first.

    Args:
        source: The ledger to read.
        dataset: Only of this dataset or population.
        limit: Largest number of lines.
        all_accounts: A line for each account that a charge posts to. Default: the
            account of the dataset, or of each part of the step, stands for them, and
            for a refusal the gate that refused.
        decisions: Only what people decided: no charge and no refusal of a step. Each
            has one line.
    """
    with open_reading(source) as reading:
        terms = {name: reading.rows.book(name).term for name in reading.names(dataset)}
        if decisions:
            entries = merge_newest(list_decisions(reading, dataset))
            terms = {name: len(reading.find_openings(name)) for name in terms}
        else:
            page = partial(pages, reading, "read_newest_entries", first=ENDLESS, key=1)
            own = (page(dataset=name, size=max(limit, _PAGE)) for name in terms)
            entries = merge_newest(map(Entry._make, rows) for rows in own)
        lines = list[Line]()
        for entry in entries:
            names = list_accounts(entry, terms[entry.dataset])
            alone = [name for name in names if stands_alone(entry, name, dataset)]
            if decisions:
                names = [min(alone or names)]
            elif not all_accounts:
                names = alone
            lines += [(entry, name) for name in names]
            if len(lines) >= limit:
                break
            terms[entry.dataset] -= entry.kind == "open"
        return describe_lines(reading, lines[:limit])


# Which lines


def list_decisions(reading: Reading, dataset: str | None) -> list[list[Entry]]:
    """Return the decisions of people in each dataset, newest first; each one once."""
    chosen, seen = defaultdict[str, list[Entry]](list), set[tuple[str, str]]()
    # A charge of several datasets is one decision; a member's line stands for it.
    every = reading.decisions(dataset)
    for entry in sorted(every, key=lambda entry: entry.dataset.startswith(PREFIX)):
        if entry.kind in DECIDES or (entry.command, entry.kind) not in seen:
            chosen[entry.dataset].append(entry)
        seen.add((entry.command, entry.kind))
    return [own[::-1] for own in chosen.values()]


def find_sums(reading: Reading, lines: Sequence[Line]) -> dict[Place, Posting]:
    """Return what accounts had settled and held after entries."""
    own = defaultdict[str, set[Place]](set)
    for entry, account in lines:
        if account in read_postings(entry.postings):
            own[entry.dataset].add((entry.number, account))
    sums, rows = dict[Place, Posting](), reading.rows.account_rows
    for dataset, places in own.items():
        now = {name: (rows[name].settled, rows[name].held) for _, name in places}
        before = min(number for number, _ in places) - 1
        postings = reading.ask("read_postings", dataset=dataset, after=before)
        for number, text in reversed(postings):
            for name, (settled, held) in read_postings(text).items():
                if name in now:
                    sums[number, name] = settled_sum, held_sum = now[name]
                    settled_sum = sum_amounts(settled_sum, negative(settled))
                    now[name] = settled_sum, sum_amounts(held_sum, negative(held))
    return sums


def list_accounts(entry: Entry, term: int) -> list[str]:
    """Return the accounts of its dataset that an entry is about.

    One that names no account is about the whole of the term at its time.
    """
    names: Iterable[str] = read_postings(entry.postings)
    if entry.kind == "refuse":
        body = json.loads(entry.body)
        names = body.get("accounts") or body.get("halts", ())
    own = sorted((n for n in names if split(n)[0] == entry.dataset), reverse=True)
    return own or [f"{entry.dataset}#{term}"]


def stands_alone(entry: Entry, account: str, dataset: str | None) -> bool:
    """Return True if an account stands for all accounts of an entry."""
    kind = split(account)[2]
    if entry.kind == "refuse":
        # An odometer that halts the run as well is not the gate that refused.
        return bool(account == json.loads(entry.body)["account"])
    if kind == "population":
        return dataset is not None or entry.kind in DECIDES
    posted = read_postings(entry.postings)
    is_divided = any(split(name)[2] == "partition" for name in posted)
    return kind == ("partition" if is_divided else "dataset")


# What they say


def describe_lines(reading: Reading, lines: list[Line]) -> list[JournalEntry]:
    """Return lines of the journal with the facts of their charges."""
    requests = reading.requests(entry.charge for entry, _ in lines)
    fates = {charge.reservation: charge.fate for charge in reading.open_charges}
    gates = reading.gates(account for _, account in lines)
    sums, shown = find_sums(reading, lines), list[JournalEntry]()
    for entry, account in lines:
        # The account of a lost term has no gate.
        if (gate := gates.get(account)) is not None:
            charge = entry.charge or ""
            body = describe_entry(find_words(reading, entry), requests.get(charge))
            after, fate = sums.get((entry.number, account)), fates.get(charge, "")
            shown.append(describe_line(entry, gate, after, body, fate))
    return shown


def find_words(reading: Reading, entry: Entry) -> Entry:
    """Return the entry that has the words of a refusal over several datasets."""
    elsewhere = json.loads(entry.body).get("refused_in")
    if entry.kind != "refuse" or elsewhere is None:
        return entry
    where = {"datasets": [elsewhere], "command": entry.command}
    entries = (Entry(*columns) for columns in reading.ask("find_command", **where))
    return next((other for other in entries if other.kind == "refuse"), entry)


def describe_line(
    entry: Entry, gate: Gate, after: Posting | None, body: Body, fate: str
) -> JournalEntry:
    """Return a line of the journal.

    Args:
        entry: The entry.
        gate: Gate of the account.
        after: What the account had settled and held after the entry, if it posts.
        body: Facts of the entry and of the request of its charge.
        fate: Fate of an open charge.
    """
    named, left, share, measure_use = gate.rule.label, None, None, None
    amount = body.get("asked", {}) if gate.id == body.get("account") else {}
    settled: Mapping[str, str] = {}
    if after is not None:
        change = read_postings(entry.postings)[gate.id]
        posted = Tally(find_amount(entry.kind, change))
        amount, share = named(posted), gate.measure_use(posted)
        settled, used = named(Tally(after[0])), Tally(sum_amounts(*after))
        # What remains in a window depends on its other parts.
        left = None if gate.window else gate._replace(used=used).left()
        measure_use = None if gate.window else gate.measure_use(used)
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
        share=share,
        left_share=None if measure_use is None else max(1 - measure_use, 0.0),
    )


def find_amount(kind: str, change: Posting) -> Amounts:
    """Return the amount of an entry: held, given back, or settled."""
    settled, held = change
    if kind == "reserve":
        return held
    if kind == "void" and not any(settled):
        return negative(held)
    return settled
