"""Mutants of the ledger: each breaks one line, and some test must notice.

Run it from the root of the repository: `python -m tests.hunts.mutants`. It changes a
copy. A mutant is looked for in all of `dpflow/ledger` and in the locks, so that code
may move; one that is not found, or twice, is stale, and the run fails until the list is
mended.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.hunts.broken.decisions import ADMIT, END, GATES, PREFLIGHT, TERMS
from tests.hunts.broken.mutant import STAGES, Mutant
from tests.hunts.broken.shell import JOURNAL, SHELL, STORAGE, WITNESS

ROOT = Path(__file__).parents[2]
COPIED = ("dpflow", "tests", "flows", "policies", "pyproject.toml")
SECONDS = 400
MUTANTS = [
    *GATES,
    *ADMIT,
    *END,
    *PREFLIGHT,
    *TERMS,
    *JOURNAL,
    *SHELL,
    *STORAGE,
    *WITNESS,
]


def sources(folder: Path) -> list[Path]:
    """Return the files that mutants are in."""
    package = folder / "dpflow"
    rooms = package / "ledger"
    return [
        *sorted(rooms.rglob("*.py")),
        rooms / "storage" / "sqlite.sql",
        package / "locks.py",
    ]


def copy_of(mutant: Mutant | None) -> Path | None:
    """Make a copy of the repository with the mutant in it; None if it is stale."""
    folder = Path(tempfile.mkdtemp(prefix="mutant-"))
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, folder / name, ignore=ignored)
        else:
            shutil.copy(source, folder / name)
    if mutant is None:
        return folder
    places = [
        path
        for path in sources(folder)
        for _ in range(path.read_text("utf-8").count(mutant.old))
    ]
    if len(places) != 1:
        shutil.rmtree(folder)
        return None
    text = places[0].read_text("utf-8")
    places[0].write_text(text.replace(mutant.old, mutant.new), "utf-8")
    return folder


def fails(folder: Path, tests: list[str]) -> str:
    """Run tests in a copy; return the first that fails, or nothing."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--tb=no", "--no-header"]
    environment = {
        **os.environ,
        "PYTHONPATH": str(folder),
        "PYTHONDONTWRITEBYTECODE": "1",
        # All cases, which a push takes some of, at a push's size.
        "DPFLOW_CAMPAIGN": "1.01",
    }
    try:
        run = subprocess.run(
            [*command, "-p", "no:cacheprovider", *tests],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "too slow"
    if run.returncode == 0:
        return ""
    failed = [line for line in run.stdout.splitlines() if line.startswith("FAILED")]
    broken = [line for line in run.stdout.splitlines() if line.startswith("ERROR")]
    names = [line.split(" - ")[0].split("::")[-1] for line in (*failed, *broken)]
    return names[0] if names else f"exit code {run.returncode}"


def judge(mutant: Mutant | None) -> str | None:
    """Return the first test that notices a mutant, if any; None if it is stale."""
    folder = copy_of(mutant)
    if folder is None:
        return None
    try:
        stages = STAGES if mutant is None else mutant.stages
        found = (fails(folder, STAGES[stage]) for stage in stages)
        return next((test for test in found if test), "")
    finally:
        shutil.rmtree(folder)


def main() -> int:
    """Judge all mutants, or those whose names contain one of the words."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", default=[""])
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    clean = judge(None)
    if clean:
        print(f"the tests fail without a mutant: {clean}")
        return 1
    chosen = [m for m in MUTANTS if any(word in m.name for word in options.words)]
    bad = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        for mutant, found in zip(chosen, pool.map(judge, chosen), strict=True):
            if found is None:
                told = "STALE: not in the source exactly once"
            elif found:
                told = f"killed by {found}"
            else:
                told = f"survived: {mutant.equal or 'NO TEST NOTICES'}"
            bad += found is None or not (found or mutant.equal)
            print(f"{mutant.name:45} {told}", flush=True)
    print(f"{len(chosen)} mutants, {bad} stale or unnoticed")
    return min(bad, 1)


if __name__ == "__main__":
    sys.exit(main())
