"""The main job, end to end, on real data: what `dpflow demo` runs.

The flow and the policy are the project's own examples. Running it again spends nothing
more: every published week is replayed from its release.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from dpflow.accounting.costs.noise import Gaussian
from dpflow.config import settings
from dpflow.exceptions import (
    BudgetRefused,
    ConfigurationError,
    LedgerMissing,
    LedgerUnavailable,
    how_to_install,
)
from dpflow.guard.plain import spend
from dpflow.guard.project import current_project, forget_projects, make_project_ledger
from dpflow.ledger import LOCK_NAME, open_ledger
from dpflow.ledger.views import accounts, open_reservations
from dpflow.ledger.views.words import (
    account_title,
    amounts_text,
    percent_text,
    reading_text,
)

if TYPE_CHECKING:
    from flows.weekly_report import Season

_KILLED = "active_customers in a worker that is killed"
_WORKER = f"""
import logging, time
logging.getLogger("dpflow").setLevel("ERROR")  # the demo has said it
from dpflow import Gaussian, spend
with spend(dataset="cdnow", flow="weekly-report", step={_KILLED!r},
           cost=Gaussian(sensitivity=1, noise_multiplier=21), noise="own"):
    print("running", flush=True)
    time.sleep(600)
"""
_QUANTILE_95 = 1.959963984540054
_CHECKOUT = Path(__file__).resolve().parents[2]
#: What its flow imports.
_NEEDED = ("opendp", "pandas", "matplotlib")
_EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def run_demo(*, as_json: bool = False) -> int:
    """Run the demo in this project, or in a new folder `dpflow-demo`.

    Args:
        as_json: Print one JSON object instead of tables.

    Returns:
        0 if the budget halted the flow as it should, else 1.

    Raises:
        ConfigurationError: If the examples or their data are not installed.
    """
    _check_installed()
    console = Console(quiet=as_json)
    root = _enter_project(console)
    _open_or_make_ledger(console)
    policy = current_project().policies.policy_for("cdnow")
    console.print(Panel(policy.guarantee_sentence(), title="The guarantee"))
    typo = _refuse_a_typo(console)
    _kill_a_worker(console)
    _prepare_prefect(root)
    season = _run_weeks(console)
    if not as_json:
        _show_values(console, season.published)
    picture = _draw(console)
    _show_accounts(console)
    _show_halt(console, season)
    if as_json:
        data = _as_data(policy.guarantee_sentence(), typo, season, picture)
        sys.stdout.write(json.dumps(data) + "\n")
    forget_projects()
    return 0 if season.refusal is not None else 1


def _check_installed() -> None:
    """Say at once what is missing: the flow would say it in a long traceback."""
    # Its data is in a package, or where the reader put it.
    data = () if os.environ.get("DPFLOW_DATA") else ("lifetimes",)
    missing = [name for name in (*_NEEDED, *data) if find_spec(name) is None]
    if missing:
        msg = (
            f"the demo needs {', '.join(missing)}; {how_to_install('examples')}. "
            "Then run `dpflow demo` again."
        )
        raise ConfigurationError(msg)


def _enter_project(console: Console) -> Path:
    """Change to a folder with the examples, made from this installation if needed."""
    root = settings().root
    if not _has_examples(root):
        root = Path.cwd() / "dpflow-demo"
        source = _EXAMPLES if _has_examples(_EXAMPLES) else _CHECKOUT
        if not _has_examples(source):
            msg = "this installation carries no examples; install dpflow from a wheel"
            raise ConfigurationError(msg)
        for name in ("flows", "policies"):
            ignored = shutil.ignore_patterns("__pycache__", "ledger.lock")
            if not (root / name).exists():
                shutil.copytree(source / name, root / name, ignore=ignored)
        # It marks the project's root, and is the place for [tool.dpflow].
        (root / "pyproject.toml").touch()
        console.print(f"The example project is in [bold]{root}[/bold].")
    os.chdir(root)
    sys.path.insert(0, str(root))
    return root


def _has_examples(folder: Path) -> bool:
    wanted = ("flows/weekly_report.py", "policies/cdnow.yaml")
    return all((folder / name).is_file() for name in wanted)


def _open_or_make_ledger(console: Console) -> None:
    found = settings()
    try:
        ledger = open_ledger(
            found.ledger_url, environment=found.environment, witness=found.witness
        )
    except LedgerMissing:
        ledger = make_project_ledger(found)
    else:
        ledger.close()
        console.print(f"The ledger is {ledger.place}; published weeks cost nothing.")
        return
    lock = found.policies / LOCK_NAME
    console.print(f"A new ledger: {ledger.place}, its id pinned in {lock}.")


def _refuse_a_typo(console: Console) -> BudgetRefused | None:
    """Ask for a step whose sigma lacks two digits; the budget must survive it."""
    cost = Gaussian(sensitivity=1, sigma="0.21")
    step = "active_customers with sigma 0.21 for 21"
    try:
        with spend(dataset="cdnow", cost=cost, step=step, flow="weekly-report"):
            console.print("[red]the mistyped step ran[/red]")
    except BudgetRefused as refusal:
        title = f"A mistyped sigma: {type(refusal).__name__}"
        console.print(Panel(refusal.message, title=title, border_style="yellow"))
        console.print("The budget is untouched; the next correct step runs below.")
        return refusal
    return None


def _kill_a_worker(console: Console) -> None:
    """Kill a worker in mid-step, once; nobody knows what it released."""
    ledger = current_project().ledger
    if not any(item.step == _KILLED for item in open_reservations(ledger)):
        with subprocess.Popen(  # noqa: S603 (our own interpreter and code)
            [sys.executable, "-c", _WORKER], stdout=subprocess.PIPE, text=True
        ) as worker:
            line = worker.stdout.readline() if worker.stdout else ""
            worker.kill()
        if line.strip() != "running":
            msg = "the worker that was to be killed could not start its step"
            raise LedgerUnavailable(msg)
    view = next(v for v in accounts(ledger, "cdnow") if v.kind == "dataset")
    console.print(
        "A worker was killed in mid-step. Nobody knows what it released, so its charge "
        f"stays, apart from what is spent: forfeited {amounts_text(view.forfeited)}."
    )


def _prepare_prefect(root: Path) -> None:
    """Give the demo a Prefect of its own, unless a server is configured."""
    if "PREFECT_API_URL" not in os.environ:
        os.environ.setdefault("PREFECT_HOME", str(root / ".dpflow" / "prefect"))
        os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
        os.environ.setdefault("DO_NOT_TRACK", "1")
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "CRITICAL")


def _run_weeks(console: Console) -> Season:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with console.status("Starting Prefect's server (about 15 seconds) ..."):
        from flows import data, weekly_report  # noqa: PLC0415 (imports Prefect)

        weeks = data.weeks()
        first = asyncio.run(weekly_report.run_weeks(weeks[:1]))
    if first.refusal is not None:
        return first
    with Progress(*columns, console=console) as progress, _quiet_exit():
        bar = progress.add_task("weeks published", total=len(weeks), completed=1)

        def advance(week: str) -> None:
            progress.update(bar, advance=1, description=f"{week} published")

        rest = asyncio.run(weekly_report.run_weeks(weeks[1:], advance))
    published = (*first.published, *rest.published)
    return weekly_report.Season(published, rest.halted, rest.refusal)


@contextmanager
def _quiet_exit() -> Iterator[None]:
    """Leave a readable line when the user stops the demo."""
    try:
        yield
    except KeyboardInterrupt:
        sys.stderr.write("\nStopped. A step that was running is charged in full.\n")
        raise


def _show_values(console: Console, weeks: tuple[str, ...]) -> None:
    """Show released values beside true ones, which only public data allows."""
    from flows import data, weekly_report  # noqa: PLC0415

    table = Table(
        title="Released and true values (true ones can be shown only because this "
        "data set is public)",
        title_justify="left",
    )
    for name in ("week", "statistic", "released", "95 % interval", "true"):
        table.add_column(name, justify="left" if name in "week statistic" else "right")
    for week in weeks[8:11] or weeks[:3]:
        frame = data.purchases(week)
        report = json.loads((weekly_report.REPORTS / f"{week}.json").read_text("utf-8"))
        true = data.active_customers(frame)
        spread = _QUANTILE_95 * float(weekly_report.CUSTOMERS.sigma)
        released = report["active_customers"]
        table.add_row(week, "active customers", *_row(released, spread, true))
        spread = _QUANTILE_95 * float(weekly_report.REVENUE.sigma) / 100
        dollars = data.revenue_cents(frame) / 100
        released = report["revenue_dollars"]
        table.add_row("", "revenue, dollars", *_row(released, spread, dollars))
        spread = _QUANTILE_95 * float(weekly_report.BASKETS.sigma)
        counts = zip(data.BASKET_LABELS, data.basket_sizes(frame), strict=True)
        for label, count in counts:
            released = report["basket_sizes"][label]
            table.add_row(
                "", f"baskets of {label}", *_row(released, spread, int(count))
            )
    console.print(table)


def _row(released: float, spread: float, true: float) -> tuple[str, str, str]:
    interval = f"{released - spread:,.0f} to {released + spread:,.0f}"
    return f"{released:,.0f}", interval, f"{true:,.0f}"


def _draw(console: Console) -> Path:
    from flows import weekly_report  # noqa: PLC0415

    path = weekly_report.draw_burn_down()
    console.print(f"The burn-down is drawn in {path} (and is a Prefect artifact).")
    return path


def _show_accounts(console: Console) -> None:
    table = Table(title="The ledger", title_justify="left")
    names = ("account", "spent", "forfeited", "left", "used", "odometer")
    for name in names:
        table.add_column(name, overflow="fold")
    for view in accounts(current_project().ledger, "cdnow"):
        table.add_row(
            account_title(view),
            amounts_text(view.spent),
            amounts_text(view.forfeited),
            amounts_text(view.left, up=False),
            percent_text(view.used_fraction),
            reading_text(view),
        )
    console.print(table)


def _show_halt(console: Console, season: Season) -> None:
    done = f"{len(season.published)} weeks were published in reports/."
    if season.refusal is None:
        console.print(f"{done} No week was refused.")
        return
    refusal = season.refusal
    ended = f"Week {season.halted} ended as [bold]{type(refusal).__name__}[/bold]"
    lines = [
        f"{done} {ended}: nothing was published for it.",
        f"asked: {amounts_text(refusal.asked)}",
        f"left:  {amounts_text(refusal.left, up=False)}",
        f"fits:  {refusal.fits}",
        "",
        "Running the demo again spends nothing more.",
        "Next: `dpflow status`, `dpflow history`, `dpflow policy check`.",
    ]
    console.print(Panel("\n".join(lines), title="Halted", border_style="red"))


def _as_data(
    guarantee: str, typo: BudgetRefused | None, season: Season, picture: Path
) -> dict[str, Any]:
    halt = season.refusal
    return {
        "guarantee": guarantee,
        "mistyped": None if typo is None else _refusal_data(typo),
        "published": list(season.published),
        "halted": season.halted,
        "refusal": None if halt is None else _refusal_data(halt),
        "burn_down": str(picture),
        "accounts": [asdict(v) for v in accounts(current_project().ledger, "cdnow")],
    }


def _refusal_data(refusal: BudgetRefused) -> dict[str, Any]:
    names = ("step", "gate", "theorem", "asked", "left", "fits")
    return {"error": type(refusal).__name__} | {n: refusal.details[n] for n in names}
