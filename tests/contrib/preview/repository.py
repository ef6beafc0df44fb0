"""A project in a git repository."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

POLICY = """\
dataset: visits
unit: visitor
relation: add-or-remove
budget: {epsilon: 1, delta: 1e-6}
filter: gaussian
odometer: {theorem: renyi, delta: 1e-6}
flows:
  daily-report: {halt_at_epsilon: 3}
"""
CODE = """\
from dpflow import Gaussian, dp_flow, dp_task, release

SIGMA = 20
raise RuntimeError("this must not be run")


@dp_task(
    dataset="visits",
    cost=Gaussian(sensitivity=1, sigma=SIGMA),
    release_key="visitors/{day}",
)
def visitors(day):
    return release(1)


@dp_flow(name="daily-report")
def daily(day):
    visitors.submit(day)
"""


@dataclass(frozen=True)
class Repository:
    """A project in a git repository."""

    root: Path

    def git(self, *arguments: str) -> str:
        """Run git here."""
        names = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=0"]
        done = subprocess.run(
            ["git", *names, *arguments],
            cwd=self.root,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    def write(self, name: str, text: str) -> None:
        """Write a file."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")

    def change(self, name: str, old: str, new: str) -> None:
        """Change one place of a file."""
        text = (self.root / name).read_text("utf-8")
        assert text.count(old) == 1, old
        self.write(name, text.replace(old, new))

    def commit(self) -> str:
        """Commit everything."""
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "x")
        return self.git("rev-parse", "HEAD")
