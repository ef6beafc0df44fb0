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

from prefect.settings import PREFECT_SERVER_DATABASE_CONNECTION_URL

from tests.prefect.matrix import canaries
from tests.prefect.matrix.support import wait_until
from tests.projects import POLICY, ledger_bytes

#: Everything that can be switched on.
VARIABLES = {
    "PREFECT_RESULTS_PERSIST_BY_DEFAULT": "true",
    "PREFECT_TASKS_DEFAULT_PERSIST_RESULT": "true",
    "PREFECT_LOGGING_LOG_PRINTS": "true",
    "PREFECT_LOGGING_LEVEL": "DEBUG",
    "PREFECT_LOGGING_EXTRA_LOGGERS": "dpflow,library",
    "PREFECT_LOGGING_TO_API_ENABLED": "true",
}
PRIVATE = [
    canaries.TEXT.encode(),
    str(canaries.NUMBER).encode(),
    canaries.NUMBER.to_bytes(8, "little"),
]
#: What a body prints and logs.
BODY = (canaries.PRINTED, canaries.WARNED)
#: What has to be found, by table: without it the search would find nothing private.
SHOWN = [
    ("task_run", canaries.PUBLIC),
    ("log", canaries.LOGGED),
    ("log", "text withheld"),
    ("log", "names no release_key"),
    ("events", canaries.PUBLIC),
    ("events", "dpflow.budget.term-opened"),
    ("flow_run_state", "BudgetRefused"),
    ("artifact", "dpflow-budget-"),
]


def prefect_database():
    """Return the file of Prefect's database."""
    url = PREFECT_SERVER_DATABASE_CONNECTION_URL.value()
    return Path(url.removeprefix("sqlite+aiosqlite:///"))


def read_tables():
    """Return all rows of each table of Prefect's database, as text."""
    uri = f"{prefect_database().as_uri()}?mode=ro"
    with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=30)) as connection:
        names = connection.execute("SELECT name FROM sqlite_master WHERE type='table'")
        return {
            name: repr(connection.execute(f'SELECT * FROM "{name}"').fetchall())
            for (name,) in names.fetchall()
        }


def _delivered(tables):
    """Say whether what the program sent last has arrived."""
    there = all(public in tables[table] for table, public in SHOWN)
    return tables if there and "canaries-pool" in tables["flow"] else None


def decode_results(content):
    """Return what is in base64 in a file, as Prefect's result storage has it."""
    parts = []
    for text in re.findall(rb"[A-Za-z0-9+/=\n\\]{16,}", content):
        with contextlib.suppress(binascii.Error, ValueError):
            parts.append(
                base64.b64decode(text.replace(b"\\n", b"").replace(b"\n", b""))
            )
    return b"".join(parts)


def test_nothing_private_is_kept(laboratory):
    """No table, file or log of Prefect's has any of it, nor has the ledger.

    Files are results, decoded, deleted rows of the database, and memos. Steps end by
    success, errors, a retry, timeouts, refusals, crashes, a deployment and a pool.
    """
    policy = POLICY.replace("{epsilon: 1}", "{epsilon: 9}")
    folder = laboratory.project("canaries", policy)
    result = laboratory.run(folder, "canaries", **VARIABLES)
    failed = "DPStepFailed"
    assert result["fail"] == [
        *[failed] * 6,
        "TaskRunTimeoutError",
        "ParameterBindError",
        "MappingMissingIterable",
        "ConfigurationError",
        "ConfigurationError",
    ]
    assert result["later"] == [failed, failed]
    assert (result["refused"], result["pool"]) == ("BudgetRefused", "Completed")
    assert result["deployed"] == "Completed"

    tables = wait_until(lambda: _delivered(read_tables()), "the last log and event")
    for table, rows in tables.items():
        for private in (canaries.TEXT, str(canaries.NUMBER), *BODY):
            assert private not in rows, table
    homes = [*laboratory.home.rglob("*"), *prefect_database().parent.rglob("*")]
    files = {path: path.read_bytes() for path in homes if path.is_file()}
    stored = b""
    for path, content in files.items():
        decoded = content + decode_results(content)
        stored += decoded
        for private in (*PRIVATE, *(text.encode() for text in BODY)):
            assert private not in decoded, path
    log, ledger = (folder / "canaries.log").read_bytes(), ledger_bytes(folder)
    for private in PRIVATE:
        assert private not in log
        assert private not in ledger
    # A body may print and log to the terminal; no log repeats what it prints.
    assert all(text.encode() in log for text in BODY)
    assert f" - {canaries.PRINTED}".encode() not in log
    assert canaries.SAID.encode() in log
    assert b"name no release_key" in log
    assert canaries.STORED.encode() in stored
    assert canaries.RELEASED.encode() in stored
    assert canaries.RELEASED.encode() in ledger


def test_the_search_decodes_what_prefect_stores():
    """As a pickle in base64 inside of JSON, in lines or not."""
    data = pickle.dumps([canaries.TEXT, canaries.NUMBER, str(canaries.NUMBER)])
    for encoded in (base64.b64encode(data), base64.encodebytes(data)):
        file = json.dumps({"result": encoded.decode()}).encode()
        for private in PRIVATE:
            assert private[:5] in data
            assert private[:5] in decode_results(file)
