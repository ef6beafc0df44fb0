"""`dpflow report` and `dpflow serve`: the page about the ledger, as a file or live."""

# ruff: noqa: PLC0415 (`dpflow --help` must not wait for the ledger)

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpflow.cli.output import Answer, render, warn
from dpflow.cli.plot import write_file
from dpflow.config import short_path
from dpflow.exceptions import ConfigurationError, DpflowError

if TYPE_CHECKING:
    from dpflow.show.page.facts import Report

_HOST = "127.0.0.1"


def report(
    dataset: str | None = None, *, out: Path = Path("report.html"), verify: bool = False
) -> Answer:
    """Write one HTML page: status, burn-downs, refusals, guarantees, verification.

    The page needs no network and shows no value of a release. With --json, the command
    prints the same facts.

    Example: `dpflow report sales --verify --out sales.html`
    """
    from dpflow.config import settings
    from dpflow.show.page.facts import read_report
    from dpflow.show.page.stamp import make_stamp

    data = read_report(settings(), dataset, stamp=make_stamp if verify else None)
    for text in data.warnings:
        warn(text)
    fine = data.stamp is None or data.stamp.found.fine
    if data.stamp is not None and not fine:
        warn(f"the ledger is bad: {data.stamp.found.bad[0]}")
    return data, _write(data, out), fine


def _write(result: Report, out: Path) -> Iterator[str]:
    """Write the page and say so."""
    from dpflow.show.page import render as page

    write_file(out, page.render(result).encode())
    yield f"Wrote {short_path(out)}: {_summary(result)}."


def _summary(result: Report) -> str:
    count = len(result.sections)
    refused = sum(section.status.refused for section in result.sections)
    if result.stamp is None:
        state = "not verified"
    elif result.stamp.found.fine:
        state = f"{result.stamp.found.entries:,} entries verified"
    else:
        state = "the ledger is bad"
    names = "dataset" if count == 1 else "datasets"
    return f"{count:,} {names}, {refused:,} refused, {state}"


def serve(*, port: int = 8484, as_json: bool = False) -> None:
    """Serve the report to a browser on this machine; each request reads it anew.

    The server answers only this machine, at 127.0.0.1, and cannot write to the ledger.
    Further paths: /dataset/NAME, /status.json and /healthz. Ctrl-C stops it.

    Example: `dpflow serve --port 8080`
    """
    from dpflow.config import settings
    from dpflow.guard.project import project_ledger
    from dpflow.show.live import make_app
    from dpflow.show.page.facts import read_report

    setup = settings()

    def check() -> str:
        ledger = project_ledger(setup, read_only=True)
        ledger.close()
        return ledger.id

    app = make_app(lambda name, stamp: read_report(setup, name, stamp=stamp), check)
    listening = _listen(port)
    url = f"http://{_HOST}:{listening.getsockname()[1]}/"
    line = f"The report is at {url} (Ctrl-C ends it)."
    render({"url": url}, [line], as_json=as_json)
    try:
        check()
    except DpflowError as error:
        warn(f"{error.message} The page says so, too, until it is there.")
    _serve(app, listening)


def _serve(app: Any, listening: socket.socket) -> None:
    import uvicorn

    quiet: Any = {"log_level": "warning", "access_log": False, "lifespan": "off"}
    config = uvicorn.Config(app, **quiet, server_header=False, proxy_headers=False)
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
