"""Where the peers live, and how they are asked.

    python benchmarks/peers/interpreters.py [--folder .peers] [NAME ...]

makes a virtual environment for each peer (they clash: tmlt.core wants numpy 1 and
pandas 1) and installs it there with pip.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import venv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

HERE = Path(__file__).resolve().parent
FOLDER = HERE.parents[1] / ".peers"

_SHOWN = 300


@dataclass(frozen=True)
class Peer:
    """A library to compare with.

    Args:
        name: Name of its virtual environment, and for `--peer-python`.
        module: What it is imported as.
        scripts: Its scripts in this folder.
        requirements: What pip installs.
    """

    name: str
    module: str
    scripts: tuple[str, ...]
    requirements: tuple[str, ...]

    @property
    def variable(self) -> str:
        """The environment variable that may name its interpreter."""
        return f"DPFLOW_PEER_{self.name.upper().replace('-', '_').replace('.', '_')}"


PEERS = (
    # Without numpy OpenDP looks for it in vain at every call, which takes long.
    Peer("opendp", "opendp", ("run_opendp.py",), ("opendp", "numpy")),
    Peer("tmlt.core", "tmlt.core", ("run_tumult.py",), ("tmlt.core",)),
    # diffprivlib 0.6.6 does not import with scikit-learn 1.7 or later.
    Peer(
        "diffprivlib",
        "diffprivlib",
        ("run_diffprivlib.py",),
        ("diffprivlib", "scikit-learn<1.7"),
    ),
    Peer("autodp", "autodp", ("run_autodp.py",), ("autodp",)),
    Peer(
        "dp-accounting",
        "dp_accounting",
        ("run_dp_accounting.py", "run_optimum.py"),
        ("dp-accounting",),
    ),
)


def interpreter(peer: Peer, given: Mapping[str, str], folder: Path) -> str | None:
    """Return the Python that has a peer, or None.

    Looked for in this order: given by name, the environment variable, this very
    environment, the folder of virtual environments.
    """
    named = given.get(peer.name) or os.environ.get(peer.variable)
    if named:
        return named
    try:
        found = importlib.util.find_spec(peer.module)
    except ModuleNotFoundError:
        found = None  # the parent package is missing
    # A mere folder of that name has no origin.
    if found is not None and found.origin is not None:
        return sys.executable
    own = folder / peer.name / "bin" / "python"
    return str(own) if own.exists() else None


@dataclass
class Question:
    """A script that is running, and where its answers go."""

    script: str
    process: subprocess.Popen[str]
    answers: TextIO
    errors: TextIO

    def wait(self) -> tuple[list[dict[str, Any]], str | None]:
        """Return the answers, and what went wrong."""
        code = self.process.wait()
        self.answers.seek(0)
        lines = [json.loads(line) for line in self.answers if line.startswith("{")]
        if code == 0:
            return lines, None
        self.errors.seek(0)
        return lines, f"{self.script} failed: ...{self.errors.read()[-_SHOWN:].strip()}"


def ask(script: str, python: str, answers: TextIO, errors: TextIO) -> Question:
    """Start a script in a peer's environment."""
    process = subprocess.Popen(  # noqa: S603
        [python, "-W", "ignore", str(HERE / script)],
        stdout=answers,
        stderr=errors,
        text=True,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
    )
    return Question(script, process, answers, errors)


def install(peer: Peer, folder: Path) -> None:
    """Make a peer's virtual environment."""
    place = folder / peer.name
    venv.create(place, with_pip=True)
    subprocess.run(  # noqa: S603
        [
            str(place / "bin" / "python"),
            *("-m", "pip", "install", "--quiet"),
            *peer.requirements,
        ],
        check=True,
    )


def main() -> None:
    """Install the peers that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    options = parser.parse_args()
    failed = []
    for peer in PEERS:
        if options.names and peer.name not in options.names:
            continue
        print(f"{peer.name}: {' '.join(peer.requirements)}", flush=True)
        try:
            install(peer, options.folder)
        except subprocess.CalledProcessError as error:
            failed.append(f"{peer.name}: {error}")
    if failed:
        sys.exit("\n".join(failed))


if __name__ == "__main__":
    main()
