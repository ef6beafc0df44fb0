"""`dpflow evidence`: what an auditor verifies offline."""

# ruff: noqa: PLC0415 (`dpflow --help` must not wait for the ledger)

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpflow.cli.output import AsJson, answer, fail
from dpflow.cli.source import ledger_facts, project_ledger
from dpflow.notebook import plain

if TYPE_CHECKING:
    from dpflow.ledger.audit.verifier import Verifier

_Out = Annotated[
    Path, typer.Option("--out", "-o", metavar="FILE", help="A new zip file.")
]


def evidence(*, out: _Out = Path("evidence.zip"), as_json: AsJson = False) -> None:
    """Write a bundle that an auditor verifies offline, without dpflow.

    It holds the journal with its hash chains, the policies as they were applied, the
    signed checkpoints, a manifest, and a verifier that needs Python alone; no value of
    a release. With the private key in DPFLOW_LEDGER_KEY the manifest is signed. The
    bundle is verified once it is written; the exit code is 1 if the ledger is bad, and
    the bundle stays.

    Example: `dpflow evidence --out evidence.zip`
    """
    from dpflow.ledger.audit.bundle import write_evidence
    from dpflow.ledger.audit.verifier import Verifier, read_bundle
    from dpflow.ledger.keys import ledger_key, signer

    key = ledger_key()
    sign = signer(key)
    with project_ledger() as (_, ledger):
        write_evidence(ledger, out, sign=sign)
    # Given a key, a verifier wants a signature, and the public one makes none.
    verifier = Verifier(read_bundle(out), key.public if key and sign else None)
    verifier.run()
    data: dict[str, Any] = {"ledger": ledger_facts(ledger), "path": str(out.absolute())}
    data |= _found(verifier, signed=sign is not None)
    answer(data, *_lines(data, out), as_json=as_json)
    for problem in [] if as_json else verifier.bad:
        fail(plain(problem))
    if verifier.bad:
        raise typer.Exit(1)


def _found(verifier: Verifier, *, signed: bool) -> dict[str, Any]:
    return {
        "accounts": len(list(verifier.totals())),
        "entries": verifier.entries,
        "signed": signed,
        "fine": not verifier.bad,
        "bad": verifier.bad,
    }


def _lines(data: dict[str, Any], out: Path) -> list[str]:
    from dpflow.ledger.audit.bundle import VERIFIER

    signed = (
        "signed"
        if data["signed"]
        else "not signed: DPFLOW_LEDGER_KEY names no private key"
    )
    wrote = f"Wrote {data['entries']:,} entries of {data['accounts']} accounts to "
    wrote += f"{plain(str(out))}; its manifest is {signed}."
    return [wrote, f"An auditor unpacks it and runs `python -I {VERIFIER}`."]
