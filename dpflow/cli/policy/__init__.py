"""`dpflow policy`: check policy files, compare and apply them, print their schema."""

# ruff: noqa: PLC0415 (`dpflow --help` must not wait for the policies' libraries)

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dpflow.cli.output import fail, say, say_json, warn
from dpflow.cli.policy import apply
from dpflow.config import short_path
from dpflow.notebook import data_of, plain

if TYPE_CHECKING:
    from dpflow.forecast.check import Check, PolicyCheck
    from dpflow.policy import Policy

app = typer.Typer(no_args_is_help=True, help="Check, compare and apply policies.")

app.command()(apply.diff)
app.command()(apply.apply)


@app.command()
def check(
    path: Path | None = None,
    *,
    cost: list[str] | None = None,
    people: int | None = None,
    strict: bool = False,
    as_json: bool = False,
) -> None:
    """Check policy files: what they guarantee, how many steps fit, what is weak.

    Every file is checked, however many are bad. Where there is a ledger, each policy
    is compared with the copy that governs. Weak choices are warned of, and the theorem
    is named that takes the workload furthest.

    Example: `dpflow policy check --people 20000 --strict`
    """
    from dpflow.forecast.check import check_policies as judge

    found = judge(path, costs=cost or (), people=people, strict=strict, tell=warn)
    (_print_json if as_json else _print)(found)
    if not found.fine:
        raise typer.Exit(1)


@app.command()
def schema(*, as_json: bool = True) -> None:
    """Print the JSON schema of policies, for editors.

    Example: `dpflow policy schema`
    """
    from dpflow.policy import policy_schema

    _ = as_json  # A schema is JSON in any case.
    say_json(policy_schema())


def _print(found: Check) -> None:
    for each in found.files:
        _print_policy(each)
    if found.valid:
        say(
            "The last columns say how many steps fit each gate alone: Gaussian steps "
            "with noise multiplier 20, and steps that are 0.1-DP. An odometer admits "
            "up to its halt; idle is what it reads before any step."
        )
    if not found.compared:
        say("There is no ledger yet to compare with; `dpflow ledger init` makes one.")
    for error in found.errors:
        fail(error.message)


def _print_policy(each: PolicyCheck) -> None:
    from rich.text import Text

    from dpflow.cli.tables import gates_table
    from dpflow.policy.reserved import run_lines
    from dpflow.show.guarantees import shares_in_words

    name = plain(short_path(each.path))
    if each.policy is None:
        say(Text.assemble((name, "bold"), "  ", ("refused", "bold red")), "")
        return
    which = f"  dataset {plain(each.policy.dataset)}  "
    say(Text.assemble((name, "bold"), which, ("valid", "green")))
    say(plain(_guarantee(each.policy, each)))
    if shares := shares_in_words(each.pinned):
        say(plain(shares))
    say("", gates_table(each.gates), "")
    for line in run_lines(each.pinned):
        say(plain(line))
    if each.standing is not None:
        _print_standing(each)
    _print_judgement(each)


def _print_standing(each: PolicyCheck) -> None:
    from rich.text import Text

    from dpflow.show.guarantees import terms_in_words, unusual_text

    style = "yellow" if each.differences else ""
    style = "bold red" if each.refused else style
    say(Text(plain(each.standing_text), style=style))
    if each.terms:
        say(plain(terms_in_words(each.terms)))
    if told := unusual_text(each.unusual):
        say(Text(told, style="yellow"))
    say("")


def _print_judgement(each: PolicyCheck) -> None:
    from rich.text import Text

    from dpflow.forecast.advice import steps_text

    for weak in each.warnings:
        say(Text.assemble(("weak: ", "bold yellow"), plain(weak.line)))
    if each.suggestion is not None:
        steps = plain(steps_text(each.workload))
        say(f"Workload ({each.origin}): {steps}. {each.suggestion.text}")
    if each.warnings or each.suggestion is not None:
        say("")


def _guarantee(policy: Policy, each: PolicyCheck) -> str:
    """Say what a policy guarantees, with the term's budget where it governs."""
    from dpflow.show.guarantees import term_guarantee

    return term_guarantee(policy.declared(), each.terms if each.same else ())


def _print_json(found: Check) -> None:
    policies = [
        {
            **data_of(each),
            "guarantee": _guarantee(each.policy, each),
            "gates": each.gates,
        }
        for each in found.files
        if each.policy
    ]
    say_json({"fine": found.fine, "policies": policies, "errors": found.errors})
