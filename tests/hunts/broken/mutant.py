"""One line that is wrong, and which tests may notice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: The controls break the ledger themselves, and so would hide what a mutant does.
NO_CONTROLS = ("-k", "not found and not find and not catches and not weaker")


#: What is decided is the same on every database.
ON_FILES = ("-k", "not postgres")


def of_ledger(room: str, *names: str) -> list[str]:
    """Return files of the tests of a room of the ledger."""
    return [f"tests/ledger/{room}/test_{name}.py" for name in names]


#: What may notice a mutant.
STAGES = {
    "model": [
        "tests/hunts/test_model.py",
        "tests/hunts/test_simulation.py",
        "tests/hunts/test_preflight_model.py",
        *("-k", f"{NO_CONTROLS[1]} and not postgres"),
    ],
    "law": of_ledger(".", "law", "journal"),
    "decisions": [
        *of_ledger("decision", "releases", "reported", "relations", "kernel", "gates"),
        "tests/ledger/decision/preflight",
        *ON_FILES,
    ],
    "gates": [
        *of_ledger("decision", "thresholds", "partitions", "populations"),
        *of_ledger("decision", "alerts", "gates"),
        *ON_FILES,
    ],
    "office": [
        "tests/ledger/decision/office",
        *of_ledger(".", "provenance"),
        *ON_FILES,
    ],
    "storage": [
        *of_ledger("storage", "edits", "memory", "owner"),
        *of_ledger(
            "storage/sqlite", "sqlite", "lock", "calls", "damage", "damaged_rows"
        ),
        *of_ledger("audit", "amounts"),
    ],
    "crash": [
        "tests/crash",
        "tests/races",
        "tests/hunts/test_faults.py",
        "tests/hunts/test_kills.py",
        "tests/hunts/test_race.py",
        *NO_CONTROLS,
    ],
    "witness": [
        *of_ledger("witness", "rollback", "witnessed_decisions", "witness", "postgres"),
        *of_ledger("witness", "places"),
        *of_ledger("audit", "reconcile"),
    ],
    "audit": of_ledger(
        "audit", "verify", "verify_edits", "checkpoints", "evidence", "reconcile"
    ),
}
DECISION = ("model", "law", "decisions")


@dataclass(frozen=True)
class Mutant:
    """One line that is wrong.

    Attributes:
        name: What is broken.
        old: What the source says.
        new: What it says in the copy.
        stages: What should notice it, the quickest first.
        equal: Why no test can notice, if none can.
    """

    name: str
    old: str
    new: str
    stages: Sequence[str] = DECISION
    equal: str = ""


OFF = "if False:"
