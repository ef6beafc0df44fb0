"""The page itself: Jinja2 templates, filled with facts; everything is escaped.

A page is one file without script, font, style or picture from elsewhere. Its content
security policy says so, too, should a name from a journal ever slip through.
"""

from __future__ import annotations

import base64
import hashlib
import threading
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from dpflow.exceptions import how_to_install
from dpflow.ledger.views.entries import alert_text, percent_text
from dpflow.notebook import Sheet, escape_key, plain
from dpflow.show.figures import BurnDown, alt_text, data_uri, draw_burn_down
from dpflow.show.page.facts import Report, Section
from dpflow.show.sheets import details, reservations_sheet

if TYPE_CHECKING:
    from jinja2 import Environment

_drawing = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """What a page that is served can do, and a file cannot.

    Attributes:
        here: Path of this page, which has links to itself.
        refresh: Seconds after which the browser reads it again, or None.
        dataset: The only dataset on it, or None if all are.
    """

    here: str
    refresh: int | None = None
    dataset: str | None = None


def render(report: Report, *, live: Live | None = None) -> str:
    """Return the page of a report.

    Args:
        report: What it shows.
        live: What it can do if it is served; None for a file.
    """
    releases = [
        (
            escape_key(release.key) or release.id,
            *(release.dataset, release.step, release.error, release.state),
            _moment(release.at),
            str(release.facts["who"] or "-"),
        )
        for release in report.releases
    ]
    heads = ("release key", "dataset", "step", "+-", "state", "at", "who")
    page = _environment().get_template("report.html")
    return page.render(
        report=report,
        sections=[_section(section) for section in report.sections],
        drawn=find_spec("matplotlib") is not None,
        held=reservations_sheet(report.reservations),
        kept=Sheet(heads, releases),
        install_plots=how_to_install("plots"),
        **_frame(live),
    )


def render_problem(message: str, *, live: Live) -> str:
    """Return a page that only says why there is no report."""
    page = _environment().get_template("problem.html")
    return page.render(message=message, **_frame(live))


def security_policy() -> str:
    """Return the content security policy of every page."""
    return (
        f"default-src 'none'; style-src 'sha256-{_style_hash()}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _frame(live: Live | None) -> dict[str, Any]:
    return {"live": live, "policy": security_policy()}


def _section(section: Section) -> dict[str, Any]:
    standing = section.status.standing
    texts, sheets, hidden = details(section.status, 60)
    return {
        "own": section,
        "facts": section.status,
        "anchor": anchor(standing.dataset, standing.term),
        "texts": texts,
        "sheets": sheets,
        "hidden": hidden,
        "picture": section.burn_down and _picture(section.burn_down),
    }


def anchor(dataset: str, term: int | None) -> str:
    """Return the id of a dataset's place on the page; no two have the same."""
    tag = hashlib.sha256(dataset.encode("utf-8", "replace")).hexdigest()[:12]
    return f"dataset-{tag}-{term or 0}"


def _picture(data: BurnDown) -> tuple[str, str] | None:
    """Return the picture in the page and its words; None without matplotlib."""
    if find_spec("matplotlib") is None:
        return None
    # Matplotlib does not support drawing in several threads.
    with _drawing:
        return _draw(data)


@lru_cache(maxsize=64)
def _draw(data: BurnDown) -> tuple[str, str]:
    figure = draw_burn_down(data)
    return data_uri(figure, "svg"), alt_text(figure)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415

    environment = Environment(
        loader=PackageLoader("dpflow.show.page"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["alert_text"] = alert_text
    environment.filters.update(
        moment=_moment,
        percent=percent_text,
        escape_key=escape_key,
        sentence=lambda text: f"{text[:1].upper()}{text[1:]}",
    )
    return environment


def _finalize(value: Any) -> Any:
    """Replace control characters in what is filled in; it is escaped after that."""
    return plain(value) if type(value) is str else value


def _moment(at: str) -> str:
    return f"{at[:19].replace('T', ' ')} UTC"


@cache
def _style_hash() -> str:
    # What stands between the tags, as the template writes it.
    style = _environment().get_template("style.css").render()
    return base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
