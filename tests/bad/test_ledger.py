"""A ledger that is missing, foreign, read-only or full: no step runs on it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from dpflow.exceptions import (
    ConfigurationError,
    LedgerCorrupt,
    LedgerMissing,
)
from tests.bad.refusals import refusal, step_at
from tests.projects import (
    TENTH,
    caught,
    fill_project,
    held,
    ledger_away,
    ledger_file,
    make_project,
    rows,
    run_python,
    spent,
)


def test_a_missing_ledger_is_an_error_and_never_made(tmp_path, monkeypatch):
    """A new, empty ledger would forget what has been spent."""
    make_project(tmp_path, monkeypatch)
    with ledger_away(tmp_path):
        for _ in range(2):
            error = caught(step_at(TENTH))
            assert type(error) is LedgerMissing
            assert str(ledger_file(tmp_path)) in error.message
            assert "DPFLOW_LEDGER_URL" in error.message
            assert not ledger_file(tmp_path).exists()
    assert rows(tmp_path)["entry"] == []


def test_a_ledger_without_its_pin_is_refused(tmp_path, monkeypatch):
    """Nothing says then that it is the right one."""
    make_project(tmp_path, monkeypatch)
    (tmp_path / "policies" / "ledger.lock").unlink()
    error = refusal(tmp_path, step_at(TENTH), ConfigurationError)
    assert "ledger.lock" in error.message


def test_a_foreign_ledger_is_refused(tmp_path, monkeypatch):
    """Its id is not the one that the policies pin."""
    make_project(tmp_path, monkeypatch)
    (tmp_path / "policies" / "ledger.lock").write_text("f" * 32, "utf-8")
    error = refusal(tmp_path, step_at(TENTH), LedgerCorrupt)
    assert "f" * 32 in error.message


@pytest.mark.parametrize("part", [None, 0.1, 0.5, 0.9])
def test_a_file_that_is_no_ledger_is_refused(tmp_path, monkeypatch, part):
    """It is not written to either, garbage or cut off; what to do is said."""
    make_project(tmp_path, monkeypatch)
    whole = ledger_file(tmp_path).read_bytes()
    text = b"not a database, but long enough to look like one\n" * 100
    content = text if part is None else whole[: int(len(whole) * part)]
    with ledger_away(tmp_path):
        ledger_file(tmp_path).write_bytes(content)
        error = caught(step_at(TENTH))
        assert content == ledger_file(tmp_path).read_bytes()
    assert type(error) is LedgerCorrupt
    assert str(ledger_file(tmp_path)) in error.message
    assert "dpflow ledger restore" in error.message


# Root may write everywhere, so this process becomes nobody. Nobody may not read the
# modules of root either, so a first step loads all that the others need.
READ_ONLY = """
import json, os, sys
from dpflow import PureDP, guarded

ran, found = [], []
step = guarded(dataset="shop", cost=PureDP(epsilon="0.1"),
               name="count")(ran.append)
os.chdir(sys.argv[1])
if os.getuid() == 0 and not sys.argv[1].endswith("writable"):
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
try:
    step("writable")
except Exception as error:
    found.append([type(error).__name__, str(error)])
print(json.dumps([ran, found]))
"""


def test_a_read_only_ledger_is_refused(monkeypatch):
    """Whether its folder or only the database cannot be written."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        monkeypatch.setenv("XDG_STATE_HOME", str(root / "state"))
        folders = [root / each for each in ("writable", "folder", "file")]
        for folder in folders:
            folder.mkdir()
            fill_project(folder)
        for path in [root / "state", *(root / "state").rglob("*")]:
            path.chmod(0o777)
        for folder in folders[1:]:
            for path in ledger_file(folder).parent.iterdir():
                path.chmod(0o444 if path == ledger_file(folder) else 0o666)
        ledger_file(folders[1]).parent.chmod(0o555)
        ledger_file(folders[2]).parent.chmod(0o777)
        before = [rows(folder) for folder in folders[1:]]
        ended = [run_python(READ_ONLY, folder) for folder in folders]
        after = [rows(folder) for folder in folders[1:]]
        ledger_file(folders[1]).parent.chmod(0o755)
    assert ended.pop(0) == [["writable"], []]
    assert [ran for ran, _ in ended] == [[], []]
    found = [error for _, errors in ended for error in errors]
    assert [kind for kind, _ in found] == ["LedgerUnavailable"] * 2
    for folder, (_, message) in zip(folders[1:], found, strict=True):
        assert str(ledger_file(folder)) in message
        assert "may be read here and not written" in message
    assert before == after


FULL = """
import json, resource, warnings
from dpflow import PureDP, guarded

ran, found = [], []

def fill():
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))

def empty():
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))

def count(full):
    ran.append(full)
    if full:
        fill()
    return 7

step = guarded(dataset="shop", cost=PureDP(epsilon="0.1"),
               release_key="count/{full}")(count)
value = step(False)
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    values = [value, step(True)]
found.append(["RuntimeWarning", *(str(each.message) for each in told)])
for _ in range(2):
    try:
        guarded(dataset="shop", cost=PureDP(epsilon="0.1"),
                name="other")(ran.append)(1)
    except Exception as error:
        found.append([type(error).__name__, str(error)])
empty()
print(json.dumps([ran, values, found]))
"""


def test_a_full_disk_refuses_the_next_step_and_keeps_a_running_one_charged(
    tmp_path, monkeypatch
):
    """A disk that fills in mid-body delays the settlement, and keeps no value back."""
    make_project(tmp_path, monkeypatch)
    ran, values, found = run_python(FULL, folder=tmp_path)
    assert ran == [False, True]
    assert values == [7, 7]
    kinds = [kind for kind, *_ in found]
    assert kinds == ["RuntimeWarning", "LedgerUnavailable", "LedgerUnavailable"]
    assert "stays charged in full and unsettled" in found[0][1]
    assert str(ledger_file(tmp_path)) in found[1][1]
    assert [row[1] for row in rows(tmp_path)["entry"]] == [
        "open",
        "reserve",
        "settle",
        "reserve",
        # Made at the end of the process, when there was room again.
        "settle",
    ]
    assert (spent(), held()) == ("0.2", "0")
