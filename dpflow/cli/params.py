"""Options and arguments of the commands: each is declared once, by its parameter."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_type_hints

import typer
from typer import Argument, Option
from typer.models import OptionInfo

from dpflow.cli.output import Answer, render
from dpflow.config import expand


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


def _path_reader(own: Any) -> Callable[[str], Path]:
    """Return a reader of paths that expands a `~` which no shell has expanded."""

    def read(text: str) -> Path:
        path = Path(expand(str(text), "the path"))
        if own.exists and not (path.is_file() or (own.dir_okay and path.exists())):
            msg = f"{path} is missing, or a folder in place of a file"
            raise typer.BadParameter(msg)
        return path

    return read


def _dataset(text: str) -> Any:
    return Argument(metavar="DATASET", help=text)


def _option(text: str, *flags: str, **more: Any) -> Any:
    """Declare an option; its flag is `--` and the parameter's name by default."""
    return Option(*flags, help=text, **more)


_PICTURE = _option(
    "The picture to write; it ends in .png or .svg.",
    *("--out", "-o"),
    callback=_picture_path,
)
_FILE: Any = {"metavar": "FILE", "exists": True, "dir_okay": False}
#: By the parameter's name; `COMMAND.NAME` holds for the function of one command. A
#: text alone is the help of an option.
PARAMS: dict[str, Any] = {
    "accept_loss": "Without a witness and without the old file: accept the loss "
    "of the charges after the backup.",
    "all_accounts": "Show the amounts of each charge in shares and odometers.",
    "anyway": "Delete the value even if the budget admits no new draw.",
    "move.anyway": "Move although processes with open charges run.",
    "back": "Take back a move that was not finished.",
    "upgrade.backup": "Where a ledger file is copied first.",
    "as_json": _option("Print JSON for programs instead of text.", "--json"),
    "at_least": _option("Exit with 1 if fewer runs fit.", metavar="N", min=0),
    "base": _option(
        "Compare with this commit in git instead of the ledger.", metavar="COMMIT"
    ),
    "by": "Group by flow, step, week, release, who, cost or noise, with commas.",
    "charge": _option("Reservation id of the step to correct.", metavar="ID"),
    "close": _option("Post this reservation in full; needs --reason.", metavar="ID"),
    "cost": _option(
        "Cost of a step: 'Gaussian(sensitivity=1, sigma=40)'; repeat it for more.",
        metavar="COST",
    ),
    "charge.cost": "'Gaussian(sensitivity=1, sigma=20)', or JSON of the journal.",
    "dataset": _dataset("Only this dataset. Default: all."),
    **{
        f"{name}.dataset": _dataset("The dataset.")
        for name in ("freeze", "unfreeze", "why", "charge", "burn_down", "registry")
    },
    "forecast.dataset": _dataset("The dataset, if there are several."),
    "init.dataset": "Name of the private data.",
    "decided": _option(
        "Show only decisions of operators, with name and reason.", "--decisions"
    ),
    "delta": "Delta, such as 1e-6; well below 1/people.",
    "deployment": Argument(metavar="FLOW/DEPLOYMENT", help="The deployment."),
    "details": "Show every account, amounts in the currency of the filter and of its "
    "members, and limits of flows.",
    "end": _option("The last one, included. Default: the first.", "--to"),
    "epsilon": "Budget for all releases of one term.",
    "odometers.epsilon": "Epsilon of each step.",
    "entry": _option("Compare this registry entry with the journal.", **_FILE),
    "every": _option("Interval: day, week, month, `2 weeks`, ...", metavar="INTERVAL"),
    "evidence": "File with the evidence; the ledger stores its SHA-256.",
    "export": Argument(
        metavar="FILE", help="An export. Default: the project's ledger."
    ),
    "fail_on": "With --base: exit with 1 if a guarantee may be looser than before.",
    "flow": _option("The flow whose share and halt count.", metavar="FLOW"),
    "init.flow": "Name of the first flow.",
    "force": "Resume even if the last refused step would be refused again.",
    "form": _option("Format of the export.", "--format"),
    "from_full_budget": "Start from the full budget, not from the ledger's charges.",
    "halt_at_epsilon": _option("Reading to tune the odometers for.", "--halt-at"),
    "like": _option("Most expensive of the last 5 runs of FLOW.", metavar="FLOW"),
    "limit": _option("Show at most this many rows.", "--limit", "-n", min=1),
    "markdown": "With --base: print a comment for a pull request.",
    "measure": Argument(help="Name that a step gives by measures=."),
    "minus": "Subtract MEASURE, FROM..TO or both: 'visits 1997-W01..1997-W09'.",
    "name": Argument(
        metavar="KEY", help="Release key, or id, or the first characters of the id."
    ),
    "new_term": "Open a term with tallies of its own; needs --reason.",
    "no_forecast": "Draw no forecast.",
    "out": _option("The file to write.", "--out", "-o"),
    "burn_down.out": _PICTURE,
    "odometers.out": _PICTURE,
    "answer.over": "Divide by MEASURE, FROM..TO or both.",
    "over": "Horizontal axis. Default: dates after two days of charges.",
    "part": _option("Read one part of a divided dataset.", metavar="NAME"),
    "partition": "Part of a divided dataset; repeat it for more.",
    "path": Argument(metavar="PATH", help="The file of the backup."),
    "check.path": Argument(
        metavar="[PATH|DATASET]",
        help="A policy file, a folder of them, or a dataset. Default: all policies.",
    ),
    "people": _option("Approximate number of privacy units.", min=1),
    "port": _option("Port; 0 selects a free one.", min=0, max=65535),
    "raise_lifetime": "With --new-term: raise the lifetime, or open a term after "
    "an overdrawn one. Both break the promise about all terms together.",
    "reason": _option("Reason, for the journal.", callback=_reason_text),
    "runs": _option(
        "Compute the noise with which N runs fit.", metavar="N", min=1, max=10**6
    ),
    "schema": _option("Validate the entry with this JSON schema.", **_FILE),
    "sql": "Print the script.",
    "start": _option(
        "Day of the first run. Default: today or the next.", "--from", metavar="DATE"
    ),
    "answer.start": _option("The first hour, day, week or month.", "--from"),
    "steps": "Number of steps.",
    "strict": "Exit with 1 at warnings, and at a missing source.",
    "term": _option("Show an earlier term.", metavar="N", min=1),
    "terms": _option("Number of terms that the lifetime admits.", min=1, max=1000),
    "theorem": _option("The theorem that admits steps.", "--filter"),
    "theorems": "Count the runs under each other theorem, too; takes seconds.",
    "unit": "Privacy unit, the protected entity, such as customer.",
    "url": Argument(metavar="URL", help="The new, empty database."),
    "upcoming": _option(
        "List the next N runs instead.", "--next", metavar="N", min=1, max=1000
    ),
    "verify": "Recompute the whole ledger for the stamp; exit with 1 if it is bad.",
    "where": _option("Field of the release key; repeat it.", metavar="FIELD=TEXT"),
    "written": _option("prometheus: gauges for a monitoring system.", "--format"),
    "yes": "Begin the witness; without it, only show the ledger.",
    "init.yes": _option("Take the defaults without questions.", "--yes", "-y"),
}


def declare(function: Callable[..., Answer | None]) -> Callable[..., None]:
    """Make a function a command: declare its parameters, and print what it returns.

    A command that answers has `--json`, unless it takes that itself.
    """
    hints = get_type_hints(function)
    answers, takes = hints.pop("return") is not NoneType, "as_json" in hints
    extra = {"as_json": bool} if answers and not takes else {}
    parameters = [*signature(function).parameters.values()]
    for key, kind in extra.items():
        hints[key] = kind
        parameters += [Parameter(key, Parameter.KEYWORD_ONLY, default=False)]
    for key in hints:
        own = PARAMS.get(f"{function.__name__}.{key}") or PARAMS[key]
        own = _option(own) if isinstance(own, str) else own
        if isinstance(own, OptionInfo) and own.default is ...:
            # Typer takes the first flag for it.
            own.default = f"--{key.replace('_', '-')}"
        if Path in (hints[key], *get_args(hints[key])):
            own.parser, own.metavar = _path_reader(own), own.metavar or "PATH"
        hints[key] = Annotated[hints[key], own]

    @wraps(function)
    def command(**options: Any) -> None:
        as_json = options.get("as_json", False)
        answer = function(**{k: v for k, v in options.items() if k not in extra})
        if answer is not None:
            render(*answer[:2], as_json=as_json)
            if answer[2:] == (False,):
                raise typer.Exit(1)

    command.__annotations__ = hints
    declared = [p.replace(annotation=hints[p.name]) for p in parameters]
    vars(command)["__signature__"] = Signature(declared)
    return command
