"""The report, live and read-only, for a browser on the same machine.

Only `GET` and `HEAD`, only from this machine, and only under its own name: a page from
elsewhere that points its own name here gets no answer. Nothing is cached, nothing is
written, and the ledger is opened for reading anew for every answer, so that steps go
on running meanwhile and a ledger that went away is noticed.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from dpflow.exceptions import DpflowError, UnknownDataset
from dpflow.ledger import Ledger
from dpflow.notebook import data_of
from dpflow.show.page.facts import Report
from dpflow.show.page.render import Live, render, render_problem, security_policy
from dpflow.show.page.stamp import Stamp, make_stamp

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

#: The only names that this machine has for itself, with or without a port.
_OURS = re.compile(rb"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?")
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_REFRESH = range(5, 3601)


def recent_stamps(seconds: float = 60.0) -> Callable[[Ledger], Stamp]:
    """Return a function that verifies a ledger now and then, not for every answer.

    Args:
        seconds: Shortest use of a stamp; the longest is twenty times as long as the
            verification.
    """
    lock, stamps = threading.Lock(), dict[str, tuple[float, Stamp]]()

    def recent(ledger: Ledger) -> Stamp:
        with lock:
            until, stamp = stamps.get(ledger.id, (0.0, None))
            if stamp is None or not stamp.found.fine or time.monotonic() >= until:
                begin = time.monotonic()
                stamp = make_stamp(ledger)
                took = time.monotonic() - begin
                stamps[ledger.id] = time.monotonic() + max(seconds, 20 * took), stamp
            return stamp

    return recent


def make_app(
    read: Callable[[str | None, Callable[[Ledger], Stamp]], Report],
    check: Callable[[], str],
    *,
    stamps: Callable[[Ledger], Stamp] | None = None,
) -> Starlette:
    """Make the application that answers browsers on this machine.

    Args:
        read: Reads the facts; called in threads, for every answer.
        check: Opens the ledger and returns its id, or raises why it cannot.
        stamps: Verifies the ledger. Default: at most once a minute.
    """
    from starlette.applications import Starlette  # noqa: PLC0415
    from starlette.middleware import Middleware  # noqa: PLC0415
    from starlette.middleware.base import BaseHTTPMiddleware  # noqa: PLC0415
    from starlette.responses import HTMLResponse  # noqa: PLC0415
    from starlette.routing import Route  # noqa: PLC0415

    verify = stamps or recent_stamps()

    def report(request: Request) -> Response:
        """Return the page of all datasets or of one."""
        dataset = request.path_params.get("dataset")
        here = "/" if dataset is None else f"/dataset/{quote(dataset)}"
        live = Live(here=here, refresh=_refresh(request), dataset=dataset)
        code = 200
        try:
            page = render(read(dataset, verify), live=live)
        except DpflowError as error:
            page, code = render_problem(error.message, live=live), _code(error)
        policy = f"{security_policy()}; frame-ancestors 'none'"
        headers = {"Content-Security-Policy": policy}
        return HTMLResponse(page, status_code=code, headers=headers)

    def status(request: Request) -> Response:  # noqa: ARG001
        """Return the facts of the page for programs."""
        return _json(lambda: data_of(read(None, verify)))

    def health(request: Request) -> Response:  # noqa: ARG001
        """Return True if the ledger can be read; it is not verified for this."""
        return _json(lambda: {"status": "ok", "ledger": check()}, status="bad")

    guard = Middleware(BaseHTTPMiddleware, dispatch=_guard)
    paths = {"/": report, "/dataset/{dataset:path}": report}
    paths |= {"/status.json": status, "/healthz": health}
    routes = [Route(path, answer, methods=["GET"]) for path, answer in paths.items()]
    return Starlette(routes=routes, middleware=[guard])


async def _guard(request: Request, answer: Callable[[Request], Any]) -> Response:
    """Refuse a request under another name, and add the headers."""
    from starlette.responses import PlainTextResponse  # noqa: PLC0415

    text = "This page is for this machine only, as 127.0.0.1 or localhost.\n"
    response: Response = PlainTextResponse(text, status_code=421)
    if _is_ours(request.scope):
        response = await answer(request)
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    return response


def _is_ours(scope: Any) -> bool:
    """Return True if a request names this machine, and only once."""
    names = [value for name, value in scope["headers"] if name == b"host"]
    return len(names) == 1 and _OURS.fullmatch(names[0].lower()) is not None


def _json(read: Callable[[], Any], **otherwise: str) -> Response:
    """Answer with what is read, or say why it cannot be."""
    from starlette.responses import JSONResponse  # noqa: PLC0415

    try:
        return JSONResponse(read())
    except DpflowError as error:
        data = {**otherwise, "error": error.message}
        return JSONResponse(data, status_code=_code(error))


def _code(error: DpflowError) -> int:
    return 404 if isinstance(error, UnknownDataset) else 503


def _refresh(request: Request) -> int | None:
    """Return after how many seconds to read again, if the request names a number."""
    text = request.query_params.get("refresh", "")
    # Four digits at most: no number is too long to read.
    is_choice = re.fullmatch("[0-9]{1,4}", text) is not None and int(text) in _REFRESH
    return int(text) if is_choice else None
