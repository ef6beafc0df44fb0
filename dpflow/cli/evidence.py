"""`dpflow evidence`: what an auditor verifies offline."""

# ruff: noqa: PLC0415 (`dpflow --help` must not wait for the ledger)

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpflow.cli.output import AsJson, fail, plain, say, say_json

_Out = Annotated[
    Path, typer.Option("--out", "-o", metavar="FILE", help="A new zip file.")
]


def evidence(
    *,
    out: _Out = Path("evidence.zip"),
    as_json: AsJson = False,
) -> None:
    """Write a bundle that an auditor verifies offline, without dpflow.

    It holds the journal with its hash chains, the policies as they were applied, the
    signed checkpoints, a manifest, and a verifier that needs Python alone; no value of
    a release. With DPFLOW_LEDGER_KEY the manifest is signed. The bundle is verified
    once it is written; the exit code is 1 if the ledger is bad, and the bundle stays.

    Example: `dpflow evidence --out evidence.zip`
    """
    from dpflow.cli.source import ledger_facts, project_ledger
    from dpflow.config import ledger_key
    from dpflow.ledger.audit.bundle import VERIFIER, write_evidence
    from dpflow.ledger.audit.verifier import Verifier, read_bundle

    key = ledger_key()
    with project_ledger() as (_, ledger):
        write_evidence(ledger, out, key=key)
        facts = ledger_facts(ledger)
    verifier = Verifier(read_bundle(out), key)
    verifier.run()
    entries, accounts = verifier.entries, len(list(verifier.totals()))
    if as_json:
        say_json(
            {
                "ledger": facts,
                "path": str(out.absolute()),
                "accounts": accounts,
                "entries": entries,
                "signed": key is not None,
                "fine": not verifier.bad,
                "bad": verifier.bad,
            }
        )
    else:
        signed = "signed" if key is not None else "not signed: no DPFLOW_LEDGER_KEY"
        say(
            f"Wrote {entries:,} entries of {accounts} accounts to "
            f"{plain(str(out))}; its manifest is {signed}.",
            f"An auditor unpacks it and runs `python -I {VERIFIER}`.",
        )
        for problem in verifier.bad:
            fail(plain(problem))
    if verifier.bad:
        raise typer.Exit(1)
