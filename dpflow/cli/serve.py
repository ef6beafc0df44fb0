"""`dpflow serve`: the report, live and read-only, for a browser on this machine."""

# ruff: noqa: PLC0415 (`dpflow --help` must not wait for the ledger)

from __future__ import annotations

import socket
from typing import Any

from dpflow.cli.output import render, warn
from dpflow.exceptions import ConfigurationError, DpflowError

_HOST = "127.0.0.1"


def serve(*, port: int = 8484, as_json: bool = False) -> None:
    """Serve the report to a browser on this machine, read again for every look.

    Only this machine is answered, at 127.0.0.1, and nothing is ever written. Also
    /dataset/NAME, /status.json and /healthz. Ctrl-C ends it.

    Example: `dpflow serve --port 8080`
    """
    from dpflow.config import settings
    from dpflow.guard.project import project_ledger
    from dpflow.show.live import make_app
    from dpflow.show.page.facts import read_report

    found = settings()

    def check() -> str:
        ledger = project_ledger(found, read_only=True)
        ledger.close()
        return ledger.id

    app = make_app(lambda name, stamp: read_report(found, name, stamp=stamp), check)
    listening = _listen(port)
    url = f"http://{_HOST}:{listening.getsockname()[1]}/"
    said = f"The report is at {url} (Ctrl-C ends it)."
    render({"url": url}, [said], as_json=as_json)
    try:
        check()
    except DpflowError as error:
        warn(f"{error.message} The page says so, too, until it is there.")
    _serve(app, listening)


def _serve(app: Any, listening: socket.socket) -> None:
    import uvicorn

    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="off",
    )
    try:
        uvicorn.Server(config).run(sockets=[listening])
    except KeyboardInterrupt:
        # Uvicorn has closed everything, and passes on how it was ended.
        return


def _listen(port: int) -> socket.socket:
    """Listen on this machine only.

    Raises:
        ConfigurationError: If the port is taken or may not be used.
    """
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((_HOST, port))
        # From now on a browser waits, and is not turned away.
        listening.listen()
    except OSError as error:
        listening.close()
        msg = (
            f"cannot listen on {_HOST}:{port}: {error.strerror or error}. Take another "
            "port with --port; 0 takes any free one."
        )
        raise ConfigurationError(msg) from error
    return listening
