"""The terms of a dataset with its accounts: all of them, or those of one part."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from dpflow.exceptions import ConfigurationError
from dpflow.ledger.decision.gates import Gate
from dpflow.ledger.decision.settlement import gate_of
from dpflow.ledger.model import all_terms
from dpflow.ledger.rows import account_key, split, term_of
from dpflow.ledger.state import State, whole_book
from dpflow.ledger.storage.tables import Reading


def load_book(reading: Reading, book: str, names: Iterable[str] | None = None) -> State:
    """Read every term of a book, and its accounts.

    Args:
        reading: The ledger.
        book: The dataset or population.
        names: Only these accounts, and those of the whole. Default: all.
    """
    keys = [whole_book(book)]
    if names is not None:
        keys = [account_key(name) for name in names if split(name)[0] == book]
    return reading.load(lambda state: (*all_terms(state, book), *keys))


def load_parts(
    reading: Reading, book: str, part: str | None = None
) -> tuple[State, int]:
    """Read every term of a book, and its accounts: all, or those of one part.

    An account of which more was charged by hand than it admits is always read: it
    breaks what is promised of all parts.

    Returns:
        The state, and the number of parts with an account.

    Raises:
        ConfigurationError: If the part has no account.
    """
    ids = {name: partition_of(name) for name in reading.accounts(book)}
    parts = {*ids.values()} - {""}
    if part is None:
        return load_book(reading, book), len(parts)
    if part not in parts:
        msg = (
            f"nothing was charged to a part {part!r} of dataset {book!r}. Its whole "
            f"budget remains. `dpflow status {shlex.quote(book)} --details` shows the "
            "fullest parts."
        )
        raise ConfigurationError(msg)
    names = [name for name, of in ids.items() if of in {"", part}]
    return load_book(reading, book, [*names, *overdrawn(reading)]), len(parts)


def gate_now(state: State, name: str) -> Gate:
    """Return the gate of an account; what is frozen is the term that governs."""
    gate, row = gate_of(state, name, 1), state.account(name)
    if gate.state == "frozen" and term_of(name) != state.book(gate.dataset).terms:
        overdrawn = row is not None and row.overdrawn
        return gate._replace(state="overdrawn" if overdrawn else "open")
    return gate


def gates_of_book(state: State, book: str) -> list[Gate]:
    """Return the gates of all terms of a book, whole and charged ones."""
    names = {f"{book}#{term.number}" for term in state.terms(book)}
    names |= {account.id for account in state.accounts(book)}
    return [gate_now(state, name) for name in sorted(names)]


def gates_by_name(reading: Reading, names: Iterable[str]) -> dict[str, Gate]:
    """Return the gates of accounts of whatever books, by their ids."""
    books: dict[str, list[str]] = {}
    for name in names:
        books.setdefault(split(name)[0], []).append(name)
    states = {book: load_book(reading, book, own) for book, own in books.items()}
    return {n: gate_now(states[book], n) for book, own in books.items() for n in own}


def partition_of(account: str) -> str:
    """Return the partition that an account's id speaks of; empty if of none."""
    # An edited ledger can hold any text.
    _, kind, part, *_ = (*account.partition("#")[2].split("/", 3), "", "", "")
    return part if kind == "partition" else ""


def overdrawn(reading: Reading) -> set[str]:
    """Return the ids of accounts that were left overdrawn, as the journal tells."""
    told = (e.body.get("overdrawn", ()) for e in reading.rare("adjust", "repair"))
    return {name for names in told for name in names}
