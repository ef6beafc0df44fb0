"""Options and arguments of the commands: each is declared once, by its parameter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from typer import Argument, Option


def _reason_text(text: str | None) -> str | None:
    """Refuse an empty reason: the journal keeps it permanently."""
    if text is None:
        return None
    if not text.strip():
        msg = "the reason is empty. The journal keeps it; write `--reason TEXT`"
        raise typer.BadParameter(msg)
    return text.strip()


def _picture_path(out: Path) -> Path:
    """Refuse what is no picture before anything is read or drawn."""
    if out.suffix.lower() not in (".png", ".svg"):
        msg = f"it must end in .png or .svg, got {out.name!r}"
        raise typer.BadParameter(msg)
    return out


def _dataset(text: str) -> Any:
    return Argument(metavar="DATASET", help=text)


_PICTURE = Option(
    "--out",
    "-o",
    callback=_picture_path,
    help="The picture to write; it ends in .png or .svg.",
)
_FLOW = "The flow whose share and halt count."
#: By the parameter's name; `COMMAND.NAME` holds for the function of one command.
PARAMS: dict[str, Any] = {
    "accept_loss": Option(
        "--accept-loss",
        help="Where the witness is waived and the old file is gone: forget what was "
        "charged after the backup.",
    ),
    "all_accounts": Option(
        "--all-accounts", help="Show what each charge posted to shares and odometers."
    ),
    "as_json": Option("--json", help="Print JSON for programs instead of text."),
    "base": Option(
        "--base",
        metavar="COMMIT",
        help="Compare with this commit in git instead of the ledger.",
    ),
    "by": Option(
        "--by", help="Group by any of flow, step, week, release, who; commas."
    ),
    "charge": Option(
        "--charge", metavar="ID", help="Reservation of a step to correct."
    ),
    "close": Option(
        "--close", metavar="ID", help="Post this one in full; needs --reason."
    ),
    "cost": Option(
        "--cost",
        metavar="COST",
        help="A step, such as 'Gaussian(sensitivity=1, sigma=40)'; again for more.",
    ),
    "charge.cost": Option(
        "--cost",
        help="Such as 'Gaussian(sensitivity=1, sigma=20)', or a journal's JSON.",
    ),
    "dataset": _dataset("Only this dataset. Default: all."),
    **{
        f"{name}.dataset": _dataset("The dataset.")
        for name in ("freeze", "unfreeze", "why", "charge", "burn_down")
    },
    "forecast.dataset": _dataset("The dataset, if there are several."),
    "init.dataset": Option("--dataset", help="Name of the private data."),
    "decided": Option(
        "--decisions", help="Show only what people decided: who, and why; no charges."
    ),
    "delta": Option("--delta", help="Delta, such as 1e-6; well below 1/people."),
    "deployment": Argument(metavar="FLOW/DEPLOYMENT", help="The deployment."),
    "details": Option(
        "--details", help="Show every account, and what limits each run."
    ),
    "epsilon": Option("--epsilon", help="Budget for all releases of one term."),
    "odometers.epsilon": Option("--epsilon", help="Epsilon of each step."),
    "every": Option(
        "--every", metavar="INTERVAL", help="day, week, month, `2 weeks`, ..."
    ),
    "evidence": Option("--evidence", help="A file that proves it; its sha256 is kept."),
    "export": Argument(
        metavar="FILE", help="An export; default: the project's ledger."
    ),
    "fail_on": Option(
        "--fail-on",
        help="With --base: exit with 1 if a guarantee may be looser than before.",
    ),
    "flow": Option("--flow", metavar="FLOW", help=_FLOW),
    "init.flow": Option("--flow", help="Name of the first flow."),
    "force": Option(
        "--force", help="Resume even if its last refused step would be refused."
    ),
    "form": Option("--format", help="One of these."),
    "from_full_budget": Option("--from-full-budget", help="Start from a full budget."),
    "halt_at_epsilon": Option(
        "--halt-at", help="Reading that odometers are tuned for."
    ),
    "like": Option(
        "--like", metavar="FLOW", help="Take the dearest of its last 5 runs."
    ),
    "limit": Option("--limit", "-n", min=1, help="Show at most this many rows."),
    "markdown": Option(
        "--markdown", help="With --base: print a comment for a pull request."
    ),
    "name": Argument(
        metavar="KEY", help="Its release key, or its id or the start of that."
    ),
    "new_key": Option(
        "--new-key",
        metavar="PATH",
        help="Write a new private key there, and its public key to PATH.pub; sign "
        "nothing.",
    ),
    "new_term": Option(
        "--new-term", help="Open a term with tallies of its own; needs --reason."
    ),
    "no_forecast": Option("--no-forecast", help="Leave the runs to come out."),
    "out": Option("--out", "-o", help="The file to write."),
    "burn_down.out": _PICTURE,
    "odometers.out": _PICTURE,
    "over": Option("--over", help="Default: dates after two days of charges."),
    "part": Option(
        "--part", metavar="NAME", help="Read one part of a divided dataset."
    ),
    "partition": Option("--partition", help="Part of a divided dataset; repeat it."),
    "path": Argument(metavar="PATH", help="The file of the backup."),
    "check.path": Argument(
        metavar="PATH",
        exists=True,
        help="A policy file or a folder of them. Default: the project's policies.",
    ),
    "people": Option("--people", min=1, help="About how many privacy units there are."),
    "port": Option("--port", min=0, max=65535, help="0 takes any free one."),
    "raise_lifetime": Option(
        "--raise-lifetime",
        help="With --new-term: let the lifetime be raised, or a term follow one "
        "that was overdrawn. Both break what was promised of all terms together.",
    ),
    "reason": Option(
        "--reason", callback=_reason_text, help="Why; the journal keeps the reason."
    ),
    "runs": Option(
        "--runs",
        metavar="N",
        min=1,
        max=10**6,
        help="With which noise do this many runs fit?",
    ),
    "sql": Option("--sql", help="Print the script."),
    "start": Option(
        "--from", metavar="DATE", help="The first run. Default: today or the next."
    ),
    "steps": Option("--steps", help="How many steps."),
    "strict": Option("--strict", help="Let warnings fail the check, and no source."),
    "term": Option("--term", metavar="N", min=1, help="Of an earlier term."),
    "theorem": Option("--filter", help="The theorem that admits steps."),
    "theorems": Option(
        "--theorems", help="Count the runs under every other theorem, too; seconds."
    ),
    "unit": Option("--unit", help="Whom the guarantee protects, such as customer."),
    "upcoming": Option(
        "--next", metavar="N", min=1, max=1000, help="List the next N runs instead."
    ),
    "verify": Option(
        "--verify",
        help="Recompute the whole ledger for its stamp; exit with 1 if it is bad.",
    ),
    "written": Option("--format", help="prometheus: gauges for a system that watches."),
    "yes": Option("--yes", help="Begin the witness, not only show the ledger."),
    "init.yes": Option("--yes", "-y", help="Ask nothing; take the defaults."),
}


def declare(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the declarations of its parameters to the function of a command."""
    hints = get_type_hints(function)
    for key in hints.keys() - {"return"}:
        own = PARAMS.get(f"{function.__name__}.{key}") or PARAMS[key]
        hints[key] = Annotated[hints[key], own]
    function.__annotations__ = hints
    return function
