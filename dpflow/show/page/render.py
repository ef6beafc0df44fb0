"""The page itself: Jinja2 templates, filled with facts; everything is escaped.

A page is one file without script, font, style or picture from elsewhere. Its content
security policy says so, too, should a name from a journal ever slip through.
"""

from __future__ import annotations

import base64
import hashlib
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from dpflow.accounting.costs.text import python_form
from dpflow.exceptions import ConfigurationError, how_to_install
from dpflow.ledger.entry import canonical
from dpflow.ledger.records import AccountView, RefusalView
from dpflow.ledger.views.alerts import alert_text
from dpflow.ledger.views.words import (
    account_title,
    amount_text,
    amounts_text,
    held_step,
    percent_text,
    reading_text,
    shown_components,
    spent_and_budget,
    telling,
)
from dpflow.notebook import plain, shown_key
from dpflow.rounding import number_from_text, short_up
from dpflow.show.figures import (
    BurnDown,
    alt_text,
    data_uri,
    draw_burn_down,
)
from dpflow.show.guarantees import unusual_text
from dpflow.show.page.facts import Report, Section

if TYPE_CHECKING:
    from jinja2 import Environment

_FOLDER = "templates"
_MOST_REFUSALS, _MOST_ACCOUNTS, _MOST_RELEASES = 20, 60, 10
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A picture inside a page: its address, and what it shows in words."""

    address: str
    words: str


def render(report: Report, *, live: Live | None = None) -> str:
    """Return the page of a report.

    Args:
        report: What it shows.
        live: What it can do if it is served; None for a file.
    """
    sections = [_section(section) for section in report.sections]
    drawn = all(each["drawn"] for each in sections)
    page = _environment().get_template("report.html")
    facts = {
        "report": report,
        "sections": sections,
        "drawn": drawn,
        "kept": report.releases[:_MOST_RELEASES],
        "install_plots": how_to_install("plots"),
    }
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
    return {"live": live, "style": _markup(_style()), "policy": security_policy()}


def _section(section: Section) -> dict[str, Any]:
    accounts = section.standing.accounts
    pictures, drawn = _pictures(section)
    filters = telling([v for v in accounts if v.reading is None], _MOST_ACCOUNTS)
    odometers = telling([v for v in accounts if v.reading is not None], _MOST_ACCOUNTS)
    return {
        "facts": section,
        "anchor": anchor(section.standing.dataset, section.standing.term),
        "rows": [row for view in filters for row in _rows(view)],
        "odometers": odometers,
        "hidden": len(accounts) - len(filters) - len(odometers),
        "used": section.used if section.overview.spent else None,
        "unusual": unusual_text(section.overview.unusual),
        "refusals": _alike(section.refusals)[:_MOST_REFUSALS],
        "pictures": pictures,
        "drawn": drawn,
    }


def anchor(dataset: str, term: int | None) -> str:
    """Return where a dataset is on the page; different ones are at different places."""
    plain = re.sub(r"[^A-Za-z0-9]+", "-", dataset).strip("-").lower()
    tag = hashlib.sha256(dataset.encode("utf-8", "replace")).hexdigest()[:8]
    return f"dataset-{plain}-{tag}-{term or 0}"


def _rows(view: AccountView) -> list[dict[str, Any]]:
    """Return the table rows of a filter, one for each component of its tally."""
    names = shown_components(view)
    return [
        {
            "view": view,
            "first": number == 0,
            "rows": len(names),
            "promise": _promise(view),
            "component": name,
            "budget": spent_and_budget(view, name)[1],
            "spent": spent_and_budget(view, name)[0],
            "reserved": amount_text(name, view.reserved[name]),
            "forfeited": amount_text(name, view.forfeited[name]),
            "left": amount_text(name, (view.left or {}).get(name), up=False),
        }
        for number, name in enumerate(names)
    ]


def _alike(refusals: Sequence[RefusalView]) -> list[dict[str, Any]]:
    """Gather refusals that say the same; the newest are first."""
    names = ("step", "flow", "gate", "theorem", "asked", "left", "fits")
    found: dict[str, dict[str, Any]] = {}
    for each in refusals:
        said = {name: each.body.get(name) for name in names}
        same = found.setdefault(
            canonical(said), {"said": said, "times": 0, "last": each.at}
        )
        same["times"] += 1
    return list(found.values())


def _promise(view: AccountView) -> str:
    """Write the epsilon and delta that a filter keeps to."""
    if view.epsilon is None:
        return "-"
    parts = (short_up(number_from_text(text)) for text in (view.epsilon, view.delta))
    return ", ".join(parts)


def _pictures(section: Section) -> tuple[list[Picture], bool]:
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
def _picture(data: BurnDown) -> Picture:
    """Draw what was read; the same again is not drawn again."""
    figure = draw_burn_down(data)
    return Picture(address=data_uri(figure, "svg"), words=alt_text(figure))


@cache
def _environment() -> Environment:
    from jinja2 import DictLoader, Environment, StrictUndefined  # noqa: PLC0415

    folder = files("dpflow.show.page").joinpath(_FOLDER)
    pages = {
        page.name: page.read_text("utf-8")
        for page in folder.iterdir()
        if page.name.endswith(".html")
    }
    environment = Environment(
        loader=DictLoader(pages),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalized,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        alert=alert_text,
        amounts=amounts_text,
        cost=python_form,
        key=shown_key,
        held_step=held_step,
        left=lambda amounts: amounts_text(amounts, up=False),
        moment=_moment,
        percent=percent_text,
        sentence=lambda text: f"{text[:1].upper()}{text[1:]}",
        short=lambda text: short_up(number_from_text(text)),
        reading=reading_text,
        title_of=account_title,
        anchor=anchor,
    )
    return environment


def _finalized(value: Any) -> Any:
    """Replace control signs in what is filled in; it is escaped after that."""
    return plain(value) if type(value) is str else value


def _moment(at: str) -> str:
    return f"{at[:19].replace('T', ' ')} UTC"


@cache
def _style() -> str:
    return files("dpflow.show.page").joinpath(_FOLDER, "style.css").read_text("utf-8")


@cache
def _style_hash() -> str:
    # What stands between the tags, as the template writes it.
    return base64.b64encode(hashlib.sha256(_style().encode()).digest()).decode()


def _markup(text: str) -> Any:
    from markupsafe import Markup  # noqa: PLC0415

    # The package's own style sheet, and nothing else.
    return Markup(text)  # noqa: S704
