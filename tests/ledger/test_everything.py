"""Every kind of entry in one ledger, and everything that reads a ledger."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dpflow.config import LEDGER_VARIABLE, POLICIES_VARIABLE
from dpflow.ledger import Ledger, create_ledger, pin_ledger
from dpflow.ledger.audit.copies import journal_rows
from dpflow.ledger.audit.exports import verify_export
from dpflow.ledger.audit.verify import verify
from tests.cli.support import run, run_fine, run_json
from tests.ledger.support import Place, audit, granted, make_policy, policy_text, url
from tests.ledgers.make import FIELDS, POLICIES, fill

KINDS = {
    *("open", "reserve", "settle", "void", "forfeit", "refuse"),
    *("adjust", "tighten", "freeze", "unfreeze", "pay"),
}


@pytest.fixture
def ledger(
    path: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Ledger]:
    """Make a project and a ledger with all kinds of entries."""
    monkeypatch.setenv("DPFLOW_WITNESS", str(tmp_path / "witness"))
    monkeypatch.setenv(LEDGER_VARIABLE, url(path))
    monkeypatch.delenv(POLICIES_VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    Path("policies").mkdir()
    Path("pyproject.toml").touch()
    for name, fields in FIELDS.items():
        Path("policies", f"{name}.yaml").write_text(policy_text(name, **fields))
    Path("policies/people.yaml").write_text(POLICIES["population"])
    with closing(create_ledger(url(path), witness=str(tmp_path / "witness"))) as made:
        pin_ledger(made, tmp_path / "policies")
        fill(made)
        lost = granted(made, policies=[make_policy("lost")], owner="0" * 32)
        made.forfeit(lost, reason="its process is gone")
        made.freeze("stopped", reason="it was right", unfreeze=True)
        yield made


@pytest.mark.storages("sqlite", "postgres")
def test_all_that_reads_a_ledger_agrees(ledger, path):
    """Verified, audited, exported, and printed by every command."""
    report = verify(ledger)
    assert (report.bad, report.witness) == ([], "agrees")
    audit(path)
    rows = [*journal_rows(ledger)]
    assert {row["kind"] for row in rows} == KINDS
    assert len(rows) == report.entries
    run_fine("ledger", "export", "--out", "journal.jsonl")
    exported = verify_export(Path("journal.jsonl"))[1]
    assert (exported.bad, exported.entries) == ([], len(rows))
    assert run_json("ledger", "verify")["fine"]
    for command in (
        "status",
        "status visits",
        "history --limit 200",
        "history visits --all-accounts",
        "ledger reservations",
        "forecast visits --like g",
        "why visits",
        "report --out page.html",
    ):
        result = run(*command.split())
        assert result.exit_code == 0, (command, result.output)
        assert result.output.strip()
    assert "Traceback" not in Path("page.html").read_text("utf-8")
