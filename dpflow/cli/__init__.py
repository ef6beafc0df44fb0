"""The `dpflow` command: one file for each noun.

Only what `--help` needs is imported here; commands import the ledger, the policies
and the theorems when they run, and none of them imports Prefect to answer.
"""

from __future__ import annotations

import os
import sys
from inspect import getdoc
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import dpflow
from dpflow.cli import (
    answer,
    forecast,
    freeze,
    history,
    init,
    ledger,
    plot,
    policy,
    releases,
    report,
    status,
)
from dpflow.cli.output import begin_output, end_output, fail
from dpflow.cli.params import declare
from dpflow.exceptions import DpflowError
from dpflow.locks import reason_of

__all__ = ["app", "main"]


class _Commands(TyperGroup):
    """Turns dpflow's errors into a message and exit code 1."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except DpflowError as error:
            fail(error.message)
            raise typer.Exit(1) from error


app = typer.Typer(
    cls=_Commands,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help needs half the time
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:  # noqa: FBT001 (typer calls it so)
    if wanted:
        typer.echo(f"dpflow {dpflow.__version__}")
        raise typer.Exit


_Version = Annotated[
    bool,
    typer.Option(
        "--version",
        callback=_print_version,
        is_eager=True,
        help="Print the version and exit.",
    ),
]


@app.callback(epilog="Exit code: 0 fine, 1 refused or failed check, 2 wrong usage.")
def _dpflow(*, version: _Version = False) -> None:
    """A budget guard for differentially private pipelines on Prefect."""


app.command("init")(init.init)
app.command("status")(status.status)
app.command("history")(history.history)
app.command("why")(history.why)
app.command("report")(report.report)
app.command("serve")(report.serve)
app.command("forecast")(forecast.forecast)
app.command("answer")(answer.answer)
app.command("demo")(init.demo)
app.command("freeze")(freeze.freeze)
app.command("unfreeze")(freeze.unfreeze)
app.command("resume")(freeze.resume)
app.add_typer(plot.app, name="plot")
app.add_typer(policy.app, name="policy")
app.add_typer(ledger.app, name="ledger")
app.add_typer(releases.app, name="releases")


def _declare_all(app: typer.Typer) -> None:
    """Declare the parameters of every command; lists show its first sentence."""
    for command in app.registered_commands:
        assert command.callback is not None
        command.callback = declare(command.callback)
        text = getdoc(command.callback) or ""
        command.short_help = text.partition("\n\n")[0].replace("\n", " ")
    for group in app.registered_groups:
        if group.typer_instance is not None:
            _declare_all(group.typer_instance)


_declare_all(app)


def main() -> None:
    """Run the command line."""
    begin_output()
    # Files alone may have names that are no UTF-8.
    words = "".join(word for word in sys.argv[1:] if not os.path.lexists(word))
    if words.encode(errors="replace").decode() != words:
        fail("an argument is not UTF-8. Nothing was done. Correct it.")
        sys.exit(1)
    try:
        app(prog_name="dpflow")
    except OSError as error:
        if error.filename is not None:
            fail(f"a file cannot be used: {reason_of(error)}.")
            sys.exit(1)
        end_output(error)
    finally:
        end_output()
