# ruff: noqa: S608 (it is made of the ledger's own statements; values stay parameters)
"""Several of the ledger's statements to PostgreSQL as one.

A statement costs the driver and the server about as much whatever it does. So what a
decision reads is asked at once and answered as JSON, for rows have texts and whole
numbers only; and what it writes is written at once, with a check of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from dpflow.ledger.postgres_server import raw_statements, with_parameters

#: Statements with few rows whose parameters are texts.
TOGETHER = frozenset(
    {
        "check_server",
        "halting_accounts",
        "newest_entries",
        "newest_term",
        "preflight_of_run",
        "read_account",
        "read_granted",
        "read_ledger",
        "read_release",
        "read_reservation",
        "reserved_amount",
    }
)
#: Changes of one row each, of which none sees what another of them wrote.
WRITTEN_TOGETHER = frozenset(
    {
        "append_entry",
        "claim_release",
        "close_reservation",
        "move_account",
        "note_granted",
        "note_refused",
        "open_reservation",
        "settle_release",
    }
)
#: With more of one kind, they are sent as arrays. The server would plan a statement
#: with short arrays anew each time.
_FEW = 4

#: A statement, and the values of each question.
Asked = Mapping[str, Sequence[Mapping[str, object]]]


def asked_together(asked: Asked) -> tuple[bytes, dict[str, Any]]:
    """Return one statement for all questions, and its parameters.

    Its rows have `place`, of the statement among those asked; `number`, of the question
    from 1 on; and `found`, its rows, or NULL for none.
    """
    shape = tuple(
        (name, tuple(many[0]), min(len(many), _FEW + 1)) for name, many in asked.items()
    )
    parameters: dict[str, Any] = {}
    for place, many in enumerate(asked.values()):
        for key in many[0]:
            if len(many) > _FEW:
                parameters[f"p{place}_{key}"] = [values[key] for values in many]
                continue
            for number, values in enumerate(many, 1):
                parameters[f"p{place}_{number}_{key}"] = values[key]
    return _sql(shape), parameters


@lru_cache(maxsize=512)
def _sql(shape: tuple[tuple[str, tuple[str, ...], int], ...]) -> bytes:
    parts = []
    for place, (name, keys, count) in enumerate(shape):
        if count > _FEW:
            parts.append(_of_arrays(place, name, keys))
            continue
        for number in range(1, count + 1):
            texts = {key: f"%(p{place}_{number}_{key})s" for key in keys}
            parts.append(f"SELECT {place}, {number}, {_found(name, texts)}")
    parts[0] = f"SELECT * FROM ({parts[0]}) AS all_of (place, number, found)"
    return "\nUNION ALL\n".join(parts).encode()


def _of_arrays(place: int, name: str, keys: Sequence[str]) -> str:
    arrays = ", ".join(f"CAST(%(p{place}_{key})s AS text[])" for key in keys)
    found = _found(name, {key: f"asked.{key}" for key in keys})
    return (
        f"SELECT {place}, asked.number, {found} FROM unnest({arrays}) "
        f"WITH ORDINALITY AS asked ({', '.join(keys)}, number)"
    )


def _found(name: str, values: Mapping[str, str]) -> str:
    sql = with_parameters(raw_statements()[name], values)
    return f"(SELECT json_agg(one) FROM ({sql.rstrip(';')}) AS one)"


def written_together(
    posts: Mapping[str, Mapping[str, object]],
) -> tuple[bytes, dict[str, Any]]:
    """Return one statement for several changes, and its parameters.

    It fails, so that nothing of its transaction is committed, unless each changes
    exactly one row.
    """
    parameters = {
        f"p{place}_{key}": value
        for place, values in enumerate(posts.values())
        for key, value in values.items()
    }
    return _writing(tuple((name, tuple(v)) for name, v in posts.items())), parameters


@lru_cache(maxsize=512)
def _writing(shape: tuple[tuple[str, tuple[str, ...]], ...]) -> bytes:
    parts, checks = [], []
    for place, (name, keys) in enumerate(shape):
        texts = {key: f"%(p{place}_{key})s" for key in keys}
        sql = with_parameters(raw_statements()[name], texts).rstrip(";")
        parts.append(f"w{place} AS ({sql} RETURNING 1)")
        count = f"(SELECT count(*) FROM w{place})"
        # No number; the server shows it in its message.
        failed = f"CAST('{name} changed ' || {count} || ' rows' AS integer)"
        checks.append(f"CASE WHEN {count} = 1 THEN 1 ELSE {failed} END")
    return f"WITH {', '.join(parts)}\nSELECT {', '.join(checks)}".encode()
