"""The hash that chains each journal entry to the one before it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from json.encoder import encode_basestring_ascii as quoted
from typing import Any

from dpflow.ledger.records import digest


def entry_hash(previous: str, entry: Mapping[str, Any]) -> str:
    """Return the hash that chains an entry to the one before it.

    Args:
        previous: The hash of the entry before; empty for the first.
        entry: Its columns; others, such as its own hash, do not count.
    """
    return _hash(previous, *[entry[column] for column in _HASHED])


#: The columns that an entry's hash covers, in the order of their names.
_HASHED = (
    "account",
    "amount",
    "at",
    "body",
    "held_after",
    "kind",
    "reservation",
    "run",
    "seq",
    "settled_after",
    "writer",
)


# An entry is often read just after it was written, and its hash is not made again.
@lru_cache(maxsize=512, typed=True)
def _hash(previous: str, *columns: Any) -> str:
    account, amount, at, body, held, kind, reservation, run, seq, settled, who = columns
    # `canonical` of these columns, in a third of the time.
    return digest(
        f'{previous}{{"account":{quoted(account)},"amount":{quoted(amount)},'
        f'"at":{quoted(at)},"body":{quoted(body)},"held_after":{quoted(held)},'
        f'"kind":{quoted(kind)},'
        f'"reservation":{"null" if reservation is None else quoted(reservation)},'
        f'"run":{"null" if run is None else quoted(run)},"seq":{seq:d},'
        f'"settled_after":{quoted(settled)},"writer":{quoted(who)}}}'
    )
