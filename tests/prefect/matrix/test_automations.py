"""The example's automations on a real server: what fires, and what it does."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.prefect.matrix.laboratory import Laboratory
from tests.prefect.matrix.support import wait_until
from tests.projects import POLICY

PATIENTS = (
    POLICY.replace("shop", "patients")
    + "alerts: [0.5, 0.8]\non_exhausted: {schedule: keep}\n"
)


@contextmanager
def _heard():
    """Listen for notifications on loopback; yield the address and what was heard."""
    heard: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            length = int(self.headers["Content-Length"])
            heard.append(json.loads(self.rfile.read(length))["text"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/", heard
        finally:
            server.shutdown()


def _save_webhook(laboratory, url):
    """Save a notification block, as the UI does."""
    kind = laboratory.ask("block_types/slug/custom-webhook")["id"]
    schemas = laboratory.ask(
        "block_schemas/filter", block_schemas={"block_type_id": {"any_": [kind]}}
    )
    data = {
        "name": "office",
        "url": url,
        "json_data": {"text": "{{subject}}: {{body}}"},
    }
    laboratory.ask(
        "block_documents/",
        name="office",
        data=data,
        block_type_id=kind,
        block_schema_id=schemas[0]["id"],
    )


@pytest.mark.slow
def test_the_example_automations_notify_and_pause(tmp_path):
    """At 80 %, once; at exhaustion, where the policy itself pauses nothing."""
    with Laboratory(tmp_path) as laboratory, _heard() as (url, notified):
        folder = laboratory.project("automated", PATIENTS)
        _save_webhook(laboratory, url)
        told = laboratory.run(folder, "automated", "custom-webhook/office")
        place = f"deployments/{told['deployment']}"
        wait_until(lambda: laboratory.ask(place)["paused"], "the automation's pause")
        wait_until(lambda: len(notified) >= 2, "the notifications")
    assert told["ended"] == "BudgetExhausted"
    at, gone = sorted(notified)
    assert at.startswith("Privacy budget of patients: 0.8 is used: 80% of the budget")
    assert "(flow until-refused, step tenth)" in at
    assert gone.startswith("Privacy budget of patients: exhausted: ")
    assert "It needs epsilon 0.1" in gone
