"""`dpflow policy`: check policy files, compare and apply them, print their schema."""

# ruff: noqa: PLC0415 (`dpflow --help` must not wait for the policies' libraries)

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpflow.cli import apply
from dpflow.cli.output import AsJson, fail, plain, say, say_json, short_path

if TYPE_CHECKING:
    from dpflow.cli.check import Checked, Comparison, Judgement
    from dpflow.exceptions import DpflowError

app = typer.Typer(no_args_is_help=True, help="Check, compare and apply policies.")

app.command()(apply.diff)
app.command()(apply.apply)


@app.command()
def check(
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="PATH",
            exists=True,
            help="A policy file or a folder of them. Default: the project's policies.",
        ),
    ] = None,
    *,
    cost: Annotated[
        list[str] | None,
        typer.Option(
            "--cost",
            metavar="COST",
            help="A step that is meant to run, such as 'Laplace(sensitivity=1, "
            "epsilon=0.1)'; again for more. Default: what the plan or journal says.",
        ),
    ] = None,
    people: Annotated[
        int | None,
        typer.Option("--people", min=1, help="About how many privacy units there are."),
    ] = None,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Let warnings fail the check, and no source."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check policy files: what they guarantee, how many steps fit, what is weak.

    Every file is checked, however many are bad. Where there is a ledger, each policy
    is compared with the copy that governs. Weak choices are warned of, and the theorem
    is named that takes the workload furthest.

    Example: `dpflow policy check --people 20000 --strict`
    """
    from dpflow.cli.check import check_files, compare, judgement, strictly
    from dpflow.config import settings
    from dpflow.exceptions import DpflowError

    found = check_files(settings().policies if path is None else path)
    policies = {each.policy.dataset: each.policy for each in found if each.policy}
    trouble: DpflowError | None = None
    comparisons: dict[str, Comparison] | None = None
    try:
        comparisons = compare(policies)
    except DpflowError as error:
        trouble = error
    errors: list[DpflowError] = [each.error for each in found if each.error]
    if trouble is not None:
        errors.append(trouble)
    judged = {
        name: judgement(
            policy, (comparisons or {}).get(name), costs=cost or (), people=people
        )
        for name, policy in policies.items()
    }
    if strict:
        judged = {name: strictly(policies[name], each) for name, each in judged.items()}
    weak = strict and any(each.warnings for each in judged.values())
    if as_json:
        _print_json(found, comparisons, errors, judged, weak=weak)
    else:
        _print(found, comparisons, errors, judged, compared=trouble is None)
    differing = [c for c in (comparisons or {}).values() if c.refused]
    if errors or differing or weak:
        raise typer.Exit(1)


@app.command()
def schema(*, as_json: AsJson = True) -> None:
    """Print the JSON schema of policies, for editors.

    Example: `dpflow policy schema`
    """
    from dpflow.policy import policy_schema

    _ = as_json  # A schema is JSON in any case.
    say_json(policy_schema())


def _print(
    found: list[Checked],
    comparisons: dict[str, Comparison] | None,
    errors: list[DpflowError],
    judged: dict[str, Judgement],
    *,
    compared: bool,
) -> None:
    from rich.text import Text

    from dpflow.cli.check import STEPS_LEGEND, gate_rows, governing, guarantee
    from dpflow.cli.tables import gates_table
    from dpflow.show.guarantees import shares_in_words

    for each in found:
        name = plain(short_path(each.path))
        if each.policy is None:
            say(Text.assemble((name, "bold"), "  ", ("refused", "bold red")), "")
            continue
        dataset = plain(each.policy.dataset)
        state = ("valid", "green")
        say(Text.assemble((name, "bold"), f"  dataset {dataset}  ", state))
        comparison = (comparisons or {}).get(each.policy.dataset)
        say(plain(guarantee(each.policy, comparison)))
        shares = shares_in_words(governing(each.policy, comparison))
        if shares:
            say(plain(shares))
        say("", gates_table(gate_rows(governing(each.policy, comparison))), "")
        if comparison is not None:
            _print_comparison(comparison)
        _print_judgement(judged[each.policy.dataset])
    if any(each.policy for each in found):
        say(STEPS_LEGEND)
    if compared and comparisons is None:
        say("There is no ledger yet to compare with; `dpflow ledger init` makes one.")
    for error in errors:
        fail(error.message)


def _print_comparison(comparison: Comparison) -> None:
    from rich.text import Text

    from dpflow.show.guarantees import terms_in_words, unusual_text

    style = "yellow" if comparison.differences else ""
    style = "bold red" if comparison.refused else style
    say(Text(plain(comparison.text), style=style))
    if comparison.terms:
        say(plain(terms_in_words(comparison.terms)))
    if told := unusual_text(comparison.unusual):
        say(Text(told, style="yellow"))
    say("")


def _print_judgement(judged: Judgement) -> None:
    from rich.text import Text

    from dpflow.forecast.advice import steps_text

    for flow in judged.flows:
        say(plain(f"Gates of {flow.text}"))
    for each in judged.warnings:
        say(Text.assemble(("weak: ", "bold yellow"), plain(each.line)))
    if judged.suggestion is not None:
        steps = plain(steps_text(judged.workload))
        say(f"Workload ({judged.origin}): {steps}. {judged.suggestion.text}")
    if judged.flows or judged.warnings or judged.suggestion is not None:
        say("")


def _print_json(
    found: list[Checked],
    comparisons: dict[str, Comparison] | None,
    errors: list[DpflowError],
    judged: dict[str, Judgement],
    *,
    weak: bool,
) -> None:
    refused = any(c.refused for c in (comparisons or {}).values())
    say_json(
        {
            "fine": not errors and not refused and not weak,
            "policies": [
                _policy_json(each, comparisons)
                | _judgement_json(judged[each.policy.dataset])
                for each in found
                if each.policy
            ],
            "errors": [_error_json(error) for error in errors],
        }
    )


def _policy_json(
    each: Checked, comparisons: dict[str, Comparison] | None
) -> dict[str, Any]:
    from dpflow.cli.check import gates_json, governing, guarantee
    from dpflow.cli.status import term_json
    from dpflow.forecast.shares import reach_of_shares

    policy = each.policy
    if policy is None:
        return {}
    ledger = None
    comparison = (comparisons or {}).get(policy.dataset)
    if comparison is not None:
        ledger = {
            "term": comparison.term,
            "differences": list(comparison.differences),
            "refused": comparison.refused,
            "terms": [term_json(view) for view in comparison.terms],
            "own_noise": comparison.unusual.own_noise,
        }
    return {
        "file": short_path(each.path),
        "dataset": policy.dataset,
        "guarantee": guarantee(policy, comparison),
        "gates": gates_json(governing(policy, comparison)),
        "shares_reach": reach_of_shares(governing(policy, comparison)),
        "ledger": ledger,
    }


def _judgement_json(judged: Judgement) -> dict[str, Any]:
    from dataclasses import asdict

    better = judged.suggestion
    return {
        "warnings": [asdict(each) for each in judged.warnings],
        "flow_gates": [each.as_json() for each in judged.flows],
        "workload": [
            {"cost": repr(step.cost), "times": step.times} for step in judged.workload
        ],
        "suggestion": better
        and {
            "filter": better.best.theorem,
            "runs": better.best.rounds,
            "policy_runs": better.own.rounds,
            "text": better.text,
        },
    }


def _error_json(error: DpflowError) -> dict[str, Any]:
    details = error.details
    return {
        "message": error.message,
        "file": details.get("file"),
        "line": details.get("line"),
        "hint": details.get("hint"),
    }
