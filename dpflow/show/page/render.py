"""The page itself: Jinja2 templates, filled with facts; everything is escaped.

A page is one file without script, font, style or picture from elsewhere. Its content
security policy says so, too, should a name from a journal ever slip through.
"""

from __future__ import annotations

import base64
import hashlib
import re
import threading
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from dpflow.exceptions import ConfigurationError, how_to_install
from dpflow.ledger.views.words import alert_text, percent_text
from dpflow.notebook import Sheet, plain, shown_key
from dpflow.show.figures import BurnDown, alt_text, data_uri, draw_burn_down
from dpflow.show.guarantees import unusual_text
from dpflow.show.page.facts import Report, Section
from dpflow.show.sheets import details, reservations_sheet

if TYPE_CHECKING:
    from jinja2 import Environment

_MOST_ACCOUNTS = 60
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
    sections = [_section(section) for section in report.sections]
    newest = report.releases
    names = [shown_key(each.key) or each.id for each in newest]
    facts = {
        "report": report,
        "sections": sections,
        "drawn": all(each["drawn"] for each in sections),
        "held": reservations_sheet(report.reservations),
        "kept": Sheet(
            ("release key", "dataset", "step", "state", "at"),
            [
                (name, e.dataset, e.step, e.state, _moment(e.at))
                for name, e in zip(names, newest, strict=True)
            ],
        ),
        "digests": Sheet(
            ("release key", "digest (HMAC)"),
            [(n, e.digest or "-") for n, e in zip(names, newest, strict=True)],
        ),
        "install_plots": how_to_install("plots"),
    }
    page = _environment().get_template("report.html")
    return page.render(**facts, **_frame(live))


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
    pictures, drawn = _pictures(section)
    texts, sheets, hidden = details(section, _MOST_ACCOUNTS)
    return {
        "facts": section,
        "anchor": anchor(section.standing.dataset, section.standing.term),
        "texts": texts,
        "sheets": sheets,
        "hidden": hidden,
        "unusual": unusual_text(section.overview.unusual),
        "pictures": pictures,
        "drawn": drawn,
    }


def anchor(dataset: str, term: int | None) -> str:
    """Return where a dataset is on the page; different ones are at different places."""
    plain = re.sub(r"[^A-Za-z0-9]+", "-", dataset).strip("-").lower()
    tag = hashlib.sha256(dataset.encode("utf-8", "replace")).hexdigest()[:8]
    return f"dataset-{plain}-{tag}-{term or 0}"


def _pictures(section: Section) -> tuple[list[tuple[str, str]], bool]:
    """Draw a dataset; say whether there was something to draw it with."""
    if section.burn_down is None:
        return [], True
    try:
        # Drawing is not made for several threads at once.
        with _drawing:
            return [_picture(section.burn_down)], True
    except ConfigurationError:
        # Without matplotlib the tables say it all.
        return [], False


@lru_cache(maxsize=64)
def _picture(data: BurnDown) -> tuple[str, str]:
    """Return the address of a picture inside the page, and what it shows in words."""
    figure = draw_burn_down(data)
    return data_uri(figure, "svg"), alt_text(figure)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415

    environment = Environment(
        loader=PackageLoader("dpflow.show.page"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalized,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["alert_text"] = alert_text
    environment.filters.update(
        moment=_moment,
        percent=percent_text,
        sentence=lambda text: f"{text[:1].upper()}{text[1:]}",
    )
    return environment


def _finalized(value: Any) -> Any:
    """Replace control signs in what is filled in; it is escaped after that."""
    return plain(value) if type(value) is str else value


def _moment(at: str) -> str:
    return f"{at[:19].replace('T', ' ')} UTC"


@cache
def _style_hash() -> str:
    # What stands between the tags, as the template writes it.
    style = _environment().get_template("style.css").render()
    return base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
