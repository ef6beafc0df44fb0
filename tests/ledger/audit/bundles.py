"""Bundles of evidence, and people who edit them and chain, sum and sign anew."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from dpflow.ledger.audit.bundle import verifier_files
from dpflow.ledger.audit.verifier import main
from dpflow.ledger.entry import Columns, canonical, entry_hash
from tests.signing import key_file, key_of

KEY = key_of("k")
CANARY = "canary-" + "2718281828"
Files = dict[str, bytes]


def check(
    place: Path, folder: Path, *options: str, signed: bool = False
) -> tuple[int, str]:
    """Run the bundle's verifier in an empty folder, without anything installed."""
    folder.mkdir(exist_ok=True)
    for name, text in verifier_files().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, "utf-8")
    verifier = folder / "verify.py"
    if signed:
        options = (*options, "--key-file", key_file(folder, "k", public=True))
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(verifier), str(place), *options],
        cwd=folder,
        env={},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout + done.stderr


def check_here(place: Path, *options: str) -> tuple[int, str]:
    """Do the same in this process, which is a tenth of the time."""
    out = StringIO()
    with redirect_stdout(out):
        return main([str(place), *options]), out.getvalue()


# Tampering


def rewritten(files: Files, name: str, change: Callable[[Any], Any]) -> Files:
    """Change a JSON file."""
    data = json.loads(files[name])
    change(data)
    return {**files, name: json.dumps(data).encode()}


def lines(files: Files, change: Callable[[list[dict[str, Any]]], Any]) -> Files:
    """Change the journal's entries."""
    rows = [json.loads(line) for line in files["journal.jsonl"].splitlines()]
    rows = change(rows) or rows
    text = "".join(f"{canonical(row)}\n" for row in rows)
    return {**files, "journal.jsonl": text.encode()}


def chained(rows: list[dict[str, Any]]) -> None:
    """Hash every entry again, as a forger would who has read the verifier."""
    heads: dict[str, str] = {}
    for row in rows:
        columns = Columns(**{k: v for k, v in row.items() if k != "hash"})
        row["hash"] = entry_hash(heads.get(row["book"], ""), columns)
        heads[row["book"]] = row["hash"]


def resealed(files: Files) -> Files:
    """Make accounts and manifest agree with a changed journal; the key is not known."""
    last, moved = {}, {}
    for line in files["journal.jsonl"].splitlines():
        row = json.loads(line)
        last[row["book"]] = row
        for account, (_, settled, held) in json.loads(row["postings"]).items():
            moved[account] = (row["number"], canonical(settled), canonical(held))

    def accounts(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            entry, settled, held = moved[row["id"]]
            row.update(entry=entry, settled=settled, held=held)

    files = rewritten(files, "accounts.json", accounts)

    def manifest(data: dict[str, Any]) -> None:
        data["heads"] = {k: [row["number"], row["hash"]] for k, row in last.items()}
        for name in data["files"]:
            if name in files:
                data["files"][name]["sha256"] = hashlib.sha256(files[name]).hexdigest()

    return rewritten(files, "manifest.json", manifest)


def packed(files: Files, place: Path) -> Path:
    """Write a bundle."""
    with zipfile.ZipFile(place, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return place


def first(rows: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """Return the first entry of a kind."""
    name = "a" if kind == "void" else "shop"
    return next(r for r in rows if (r["kind"], r["book"]) == (kind, name))


def cheaper(rows: list[dict[str, Any]], *, explained: bool = True) -> None:
    """Lower one settled amount, and every sum after it."""
    settle = first(rows, "settle")
    if explained:
        body = json.loads(settle["body"])
        settle["body"] = canonical({**body, "outcome": "completed", "reported": 0})
    less = {}
    for account, three in (postings := json.loads(settle["postings"])).items():
        less[account], three[0] = three[0], [0] * len(three[0])
    settle["postings"] = canonical(postings)
    for row in rows:
        if row["book"] == settle["book"] and row["number"] >= settle["number"]:
            postings = json.loads(row["postings"])
            for account, three in postings.items():
                amount = less.get(account, [0] * len(three[1]))
                three[1] = [a - b for a, b in zip(three[1], amount, strict=True)]
            row["postings"] = canonical(postings)
    chained(rows)


def cut(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Cut off the newest entry of the dataset."""
    last = max(row["number"] for row in rows if row["book"] == "shop")
    return [row for row in rows if (row["book"], row["number"]) != ("shop", last)]


def in_term(
    change: Callable[[dict[str, Any]], None],
) -> Callable[[list[dict[str, Any]]], None]:
    """Change what the entry that opened a term says of it, and chain it again."""

    def changed(rows: list[dict[str, Any]]) -> None:
        row = first(rows, "open")
        body = json.loads(row["body"])
        change(body["term"])
        row["body"] = canonical(body)
        chained(rows)

    return changed


def above(term: dict[str, Any]) -> None:
    """Pin a threshold below what was granted, as if more had been."""
    gate = term["gates"]["dataset"]
    rule = json.loads(gate["rule"])
    rule["thresholds"] = [1 for _ in rule["thresholds"]]
    gate["rule"] = canonical(rule)


def raised(term: dict[str, Any], *, hashed: bool = False) -> None:
    """Raise the pinned budget, and perhaps hash it again."""
    term["pinned"]["filter"]["epsilon"] = "30"
    if hashed:
        text = canonical(term["pinned"])
        term["policy_hash"] = hashlib.sha256(text.encode()).hexdigest()


def set_in(row: dict[str, Any], **values: Any) -> None:
    """Set some fields."""
    row.update(values)


def free(rows: list[dict[str, Any]]) -> None:
    """End a charge and post nothing."""
    first(rows, "settle")["postings"] = "{}"
    chained(rows)


def thawed_late(rows: list[dict[str, Any]]) -> None:
    """Call a refusal a freeze, which steps came after."""
    row = next(r for r in rows if (r["kind"], r["book"]) == ("refuse", "a"))
    told = {"frozen": {"who": "ann", "because": "x"}}
    row.update(kind="freeze", charge=None, postings="{}", body=canonical(told))
    chained(rows)


def in_point(rows: list[dict[str, Any]], **facts: Any) -> None:
    """Change what the first checkpoint says."""
    row = first(rows, "checkpoint")
    body = json.loads(row["body"])
    body["signed"] |= facts
    row["body"] = canonical(body)
    chained(rows)


def unsigned(rows: list[dict[str, Any]]) -> None:
    """Call every checkpoint something that decides nothing."""
    for row in rows:
        if row["kind"] == "checkpoint":
            row["kind"] = "thaw"
    chained(rows)


def without_checkpoints(files: Files) -> Files:
    """Remove all checkpoints."""
    return lines(files, unsigned)


def resigned(files: Files, letter: str) -> Files:
    """Sign the manifest with some key."""
    signature = key_of(letter).sign(files["manifest.json"])
    return {**files, "manifest.sig": signature}
