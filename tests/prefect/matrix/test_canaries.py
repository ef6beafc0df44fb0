"""Nothing private is in Prefect's database, its home, its logs, or the ledger."""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import pickle
import re
import sqlite3
from pathlib import Path
from types import SimpleNamespace

import pytest
from prefect.settings import PREFECT_SERVER_DATABASE_CONNECTION_URL

from tests.prefect.matrix.canaries import (
    LOGGED,
    NUMBER,
    PRINTED,
    PUBLIC,
    RELEASED,
    STORED,
    TEXT,
)
from tests.prefect.matrix.support import wait_until
from tests.projects import POLICY, ledger_bytes

#: Everything that can be switched on.
VARIABLES = {
    "PREFECT_RESULTS_PERSIST_BY_DEFAULT": "true",
    "PREFECT_TASKS_DEFAULT_PERSIST_RESULT": "true",
    "PREFECT_LOGGING_LOG_PRINTS": "true",
    "PREFECT_LOGGING_LEVEL": "DEBUG",
    "PREFECT_LOGGING_EXTRA_LOGGERS": "dpflow",
    "PREFECT_LOGGING_TO_API_ENABLED": "true",
}


def canaries(laboratory):
    """Run the canaries and read everything that Prefect and dpflow have kept."""
    folder = laboratory.project(
        "canaries", POLICY.replace("{epsilon: 1}", "{epsilon: 9}")
    )
    told = laboratory.run(folder, "canaries", **VARIABLES)
    url = PREFECT_SERVER_DATABASE_CONNECTION_URL.value()
    database = Path(url.removeprefix("sqlite+aiosqlite:///"))
    tables = wait_until(lambda: _delivered(_tables(database)), "the last log and event")
    return SimpleNamespace(
        told=told,
        tables=tables,
        files=_files(laboratory.home) | _files(database.parent),
        log=(folder / "canaries.log").read_bytes(),
        ledger=ledger_bytes(folder),
    )


def _tables(database):
    """Return all rows of each table of Prefect's database, as text."""
    uri = f"{database.as_uri()}?mode=ro"
    with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=30)) as connection:
        found = connection.execute("SELECT name FROM sqlite_master WHERE type='table'")
        names = [name for (name,) in found]
        return {
            name: repr(connection.execute(f'SELECT * FROM "{name}"').fetchall())
            for name in names
        }


def _delivered(tables):
    """Say whether what the program sent last has arrived."""
    ended = tables["flow_run"].count("canaries-") + 1
    there = LOGGED in tables["log"] and PUBLIC in tables["events"] and ended
    return tables if there and "canaries-pool" in tables["flow"] else None


def _files(home):
    """Return the bytes of each file, and what is encoded in it."""
    found = {}
    for path in home.rglob("*"):
        if path.is_file():
            found[path.name] = path.read_bytes() + _decoded(path.read_bytes())
    return found


def _decoded(content):
    """Return what is in base64 in a file, as Prefect's result storage has it."""
    parts = []
    for text in re.findall(rb"[A-Za-z0-9+/=\n\\]{16,}", content):
        with contextlib.suppress(binascii.Error, ValueError):
            parts.append(
                base64.b64decode(text.replace(b"\\n", b"").replace(b"\n", b""))
            )
    return b"".join(parts)


PRIVATE = [TEXT.encode(), str(NUMBER).encode(), NUMBER.to_bytes(8, "little")]


def test_the_steps_ended_in_every_way(found):
    """Success, errors, a retry, a timeout, refusals, crashes, a deployment, a pool."""
    told = found(canaries).told
    failed = "DPStepFailed"
    assert told["fail"][:7] == [failed] * 7
    assert told["fail"][7:] == [
        "TaskRunTimeoutError",
        "ParameterBindError",
        "MappingMissingIterable",
        "ConfigurationError",
        "ConfigurationError",
        failed,
    ]
    assert told["later"] == [failed, failed]
    assert (told["refused"], told["pool"]) == ("BudgetRefused", "Completed")
    assert told["deployed"] == "Completed"


def test_nothing_private_is_kept(found):
    """No table, file or log of Prefect's has any of it, nor has the ledger.

    Files are results, decoded, deleted rows of the database, and memos.
    """
    seen = found(canaries)
    for table, rows in seen.tables.items():
        for private in (TEXT, str(NUMBER), PRINTED):
            assert private not in rows, table
    for name, content in seen.files.items():
        for private in (*PRIVATE, PRINTED.encode()):
            assert private not in content, name
    for private in PRIVATE:
        assert private not in seen.log
        assert private not in seen.ledger
    # A body may print to the terminal.
    assert PRINTED.encode() in seen.log


def test_the_search_finds_what_is_public(found):
    """It would have found the others."""
    seen = found(canaries)
    for table, public in [
        ("task_run", PUBLIC),
        ("log", LOGGED),
        ("log", "text withheld"),
        ("log", "names no release_key"),
        ("events", PUBLIC),
        ("events", "dpflow.budget.term-opened"),
        ("flow_run_state", "BudgetRefused"),
        ("artifact", "dpflow-budget-shop"),
    ]:
        assert public in seen.tables[table], table
    stored = b"".join(seen.files.values())
    assert b"name no release_key" in seen.log
    assert STORED.encode() in stored
    assert RELEASED.encode() in stored
    assert RELEASED.encode() in seen.ledger


@pytest.mark.parametrize("private", PRIVATE)
def test_the_search_decodes_what_prefect_stores(private):
    """As a pickle in base64 inside of JSON, in lines or not."""
    data = pickle.dumps([TEXT, NUMBER, str(NUMBER)])
    assert private[:5] in data
    for encoded in (base64.b64encode(data), base64.encodebytes(data)):
        file = json.dumps({"result": encoded.decode()}).encode()
        assert private[:5] in _decoded(file)
