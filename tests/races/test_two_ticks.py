"""Two processes make the same week's release under the guard, on both databases."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest

from dpflow.ledger import Ledger, create_ledger, open_ledger, pin_ledger
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.office import apply_policy
from dpflow.ledger.office_records import Wish
from dpflow.policy import load_policies
from tests.ledger.support import Place, audit, await_death, kinds, read, sums, url
from tests.projects import POLICY, ROOT

TICK = """
import sys
from dpflow import PureDP, guarded

@guarded(dataset="shop", cost=PureDP(epsilon="0.1"),
         release_key="count/{week}", flow="weekly")
def count(week):
    print("running", flush=True)
    return int(sys.stdin.readline())

print("asking", flush=True)
print(count(1), flush=True)
"""


@pytest.fixture
def ledger(path: Place, tmp_path: Path) -> Iterator[Ledger]:
    """Give the ledger of a project whose policy is applied."""
    folder = tmp_path / "project"
    (folder / "policies").mkdir(parents=True)
    (folder / "policies" / "shop.yaml").write_text(POLICY, "utf-8")
    (folder / "pyproject.toml").touch()
    made = create_ledger(url(path))
    pin_ledger(made, folder / "policies")
    policy = load_policies(folder / "policies").policy_for("shop")
    apply_policy(made, policy, Wish())
    made.close()
    found = open_ledger(url(path))
    yield found
    assert verify(found).bad == []
    found.close()
    audit(path)


def tick(path: Place, tmp_path: Path) -> subprocess.Popen[str]:
    """Start a process that reports the week."""
    return subprocess.Popen(
        [sys.executable, "-c", TICK],
        cwd=tmp_path / "project",
        env={**os.environ, "PYTHONPATH": str(ROOT), "DPFLOW_LEDGER_URL": url(path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def lines(process: subprocess.Popen[str], number: int) -> list[str]:
    """Return the next lines that a process says."""
    assert process.stdout is not None
    return [process.stdout.readline().strip() for _ in range(number)]


@pytest.mark.usefixtures("ledger")
def test_the_second_waits_and_replays(path: Place, tmp_path: Path) -> None:
    """One charge, one body, one value in both processes."""
    with tick(path, tmp_path) as first:
        assert lines(first, 2) == ["asking", "running"]
        with tick(path, tmp_path) as second:
            assert lines(second, 1) == ["asking"]
            assert kinds(path, "shop#1") == ["open", "reserve"]
            assert first.communicate("42\n", timeout=60)[0] == "42\n"
            assert second.communicate(timeout=60)[0] == "42\n"
    assert kinds(path, "shop#1") == ["open", "reserve", "settle"]


@pytest.mark.usefixtures("ledger")
def test_a_killed_claimant_stays_charged_and_frees_the_key(
    path: Place, tmp_path: Path
) -> None:
    """The second then runs with a charge of its own; the first is never returned."""
    with tick(path, tmp_path) as first:
        assert lines(first, 2) == ["asking", "running"]
        ((dead,),) = read(path, "SELECT id FROM charge")
        with tick(path, tmp_path) as second:
            assert lines(second, 1) == ["asking"]
            first.kill()
            first.wait()
            await_death(path, dead)
            assert lines(second, 1) == ["running"]
            assert second.communicate("7\n", timeout=60)[0] == "7\n"
    assert kinds(path, "shop#1") == ["open", "reserve", "reserve", "settle"]
    settled, held = sums(path, "shop#1")
    assert settled == held == Fraction(1, 10)
    with tick(path, tmp_path) as third:
        assert third.communicate(timeout=60)[0] == "asking\n7\n"
