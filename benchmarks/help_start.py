"""How long `dpflow --help` takes, beside what its libraries take to load.

    python benchmarks/help_start.py

The goal is under 0.7 s on a quiet machine; the ratio is what a busy one can tell.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

ROUNDS = 7
BASELINE = [sys.executable, "-c", "import rich.table, typer"]
HELP = [sys.executable, "-m", "dpflow", "--help"]


def seconds(command: list[str]) -> float:
    """Run a command once."""
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)  # noqa: S603
    return time.perf_counter() - start


def main() -> None:
    """Print medians of interleaved rounds, and their ratio."""
    rounds = [(seconds(BASELINE), seconds(HELP)) for _ in range(ROUNDS)]
    libraries = statistics.median(first for first, _ in rounds)
    shown = statistics.median(second for _, second in rounds)
    print(f"importing typer and rich  {libraries:.3f} s")
    print(
        f"dpflow --help             {shown:.3f} s   {shown / libraries:.2f} times that"
    )


if __name__ == "__main__":
    main()
