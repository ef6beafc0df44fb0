"""`dpflow serve` listens on this machine only, until it is ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import httpx

from tests.cli.support import Shop
from tests.projects import ROOT


def test_the_page_is_at_the_address_that_it_prints(shop: Shop) -> None:
    """On this machine's own address; Ctrl-C ends it without a word."""
    with subprocess.Popen(
        [sys.executable, "-m", "dpflow", "serve", "--port", "0", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:
        try:
            lines = [process.stdout.readline() for _ in range(3)]
            url = json.loads("".join(lines))["url"]
            assert url.startswith("http://127.0.0.1:")
            for path, text in (
                ("", "Privacy budget report"),
                ("dataset/cdnow", "week"),
            ):
                page = httpx.get(url + path, timeout=60)
                assert (page.status_code, text in page.text) == (200, True)
        finally:
            process.send_signal(signal.SIGINT)
            errors = process.stderr.read()
    assert "Traceback" not in errors
    assert process.returncode == 0, errors
