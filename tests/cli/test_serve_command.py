"""`dpflow serve` listens on this machine only, until it is ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from tests.cli.support import Shop
from tests.projects import ROOT


@contextmanager
def served() -> Iterator[str]:
    """Serve the project of the working directory at any free port."""
    process = subprocess.Popen(
        [sys.executable, "-m", "dpflow", "serve", "--port", "0", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        lines = [process.stdout.readline() for _ in range(3)]
        yield json.loads("".join(lines))["url"]
    finally:
        process.send_signal(signal.SIGINT)
        errors = process.stderr.read()
        code = process.wait(timeout=60)
    assert "Traceback" not in errors
    assert code == 0, errors


def get(url: str) -> tuple[int, str]:
    """Ask for a page; return its status and text."""
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_the_page_is_at_the_address_that_it_prints(shop: Shop) -> None:
    """On this machine's own address; Ctrl-C ends it without a word."""
    with served() as url:
        assert url.startswith("http://127.0.0.1:")
        status, text = get(url)
        assert (status, "Privacy budget report" in text) == (200, True)
        status, text = get(f"{url}dataset/cdnow")
        assert (status, "weekly-report" in text) == (200, True)
