"""Commands whose standard streams are closed, full or without a reader."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.cli.support import Shop
from tests.sizes import spread
from tests.tables import read_tables

ROWS = read_tables(__file__)
COMMANDS: dict[str, int] = ROWS["commands"]
CASES = [
    (command, streams, reason)
    for streams, reason, count in ROWS["streams"]
    for command in list(COMMANDS)[:count]
]


@pytest.mark.parametrize(("command", "streams", "reason"), spread(CASES, 6))
def test_a_command_ends_with_one_line_and_a_code(
    shop: Shop, command: str, streams: str, reason: str | None
) -> None:
    """There is no traceback, and one line says what is wrong; without a reader, none.

    Without standard error the code alone says that a command failed.
    """
    shop.reserve()
    code, fails = COMMANDS[command], COMMANDS[command] == 1
    where, _, setting = streams.partition(" PYTHON")
    line = f"set -o pipefail; '{sys.executable}' -m dpflow {command} {where}"
    environment = {**os.environ, "PYTHONUNBUFFERED": "1" if setting else ""}
    result = subprocess.run(
        ["bash", "-c", line],
        cwd=shop.root,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )
    lines = result.stderr.splitlines()
    if reason is not None and not (fails and reason == ROWS["full"]):
        assert (result.returncode, len(lines)) == (1, int(bool(reason)))
        assert reason in result.stderr
        return
    # A reader may be gone before the first line.
    assert result.returncode in ({0, 1} if "|" in streams else {code})
    assert len(lines) == int(fails and "2>" not in streams)
    assert bool(result.stdout) == (not fails and "|" not in streams)
