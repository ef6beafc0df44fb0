"""Commands whose standard streams are closed, full or without a reader."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.cli.support import Shop
from tests.sizes import spread

#: Commands, and how they end where all streams are there.
COMMANDS = {"status": 0, "why nothing": 1, "--version": 0}
CLOSED = "standard output is closed"
FULL = "the output cannot be written: No space left on device"


#: Streams, the line on the one that is there, and how many of the commands run so.
STREAMS = [
    (">&-", CLOSED, 3),
    (">/dev/full", FULL, 3),
    (">&- 2>&-", "", 3),
    (">/dev/full PYTHONUNBUFFERED=1", FULL, 2),
    ("<&-", None, 1),
    ("2>&-", None, 2),
    ("2>/dev/full", None, 2),
    ("| sleep 0", None, 1),
]
CASES = [
    (command, streams, reason)
    for streams, reason, count in STREAMS
    for command in list(COMMANDS)[:count]
]


@pytest.mark.parametrize(("command", "streams", "reason"), spread(CASES, 10))
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
    if reason is not None and not (fails and reason == FULL):
        assert (result.returncode, len(lines)) == (1, int(bool(reason)))
        assert reason in result.stderr
        return
    # A reader may be gone before the first line.
    assert result.returncode in ({0, 1} if "|" in streams else {code})
    assert len(lines) == int(fails and "2>" not in streams)
    assert bool(result.stdout) == (not fails and "|" not in streams)
