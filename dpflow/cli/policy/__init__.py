"""`dpflow policy`: check policy files, compare and apply them, print their schema."""

# ruff: noqa: PLC0415 (`dpflow --help` must not wait for the policies' libraries)

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dpflow.cli.output import Answer, Part, fail, say_json, warn
from dpflow.cli.policy import apply, registry
from dpflow.config import short_path
from dpflow.notebook import Sheet, data_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dpflow.forecast.check import GateCheck, PolicyCheck, PolicyFindings
    from dpflow.ledger.views.accounts import AccountView
    from dpflow.policy import Policy

#: Up to this many lines of a sequence, the steps are printed.
_STEPS_SHOWN = 4

app = typer.Typer(no_args_is_help=True, help="Check, compare and apply policies.")

app.command()(apply.diff)
app.command()(apply.apply)
app.command()(registry.registry)


@app.command()
def check(
    path: Path | None = None,
    *,
    cost: list[str] | None = None,
    people: int | None = None,
    strict: bool = False,
) -> Answer:
    """Check policy files: guarantees, number of steps that fit, weak choices.

    The command checks every file, and compares each policy with the ledger's copy if
    there is a ledger. It warns of weak choices, and names the theorem that admits the
    most steps.

    Example: `dpflow policy check --people 20000 --strict`
    """
    from dpflow.forecast.check import check_policies as judge

    result = judge(path, costs=cost or (), people=people, strict=strict, tell=warn)
    return lambda: _data(result), _parts(result), result.fine


@app.command()
def schema(*, as_json: bool = True) -> None:
    """Print the JSON schema of policies, for editors.

    Example: `dpflow policy schema`
    """
    from dpflow.policy import policy_schema

    _ = as_json  # A schema is JSON in any case.
    say_json(policy_schema())


def _parts(record: PolicyFindings) -> Iterator[Part]:
    for check in record.files:
        if check.policy is None:
            name = (short_path(check.path), "bold")
            yield [name, "  ", ("refused", "bold red")]
            yield ""
        else:
            yield from _policy_parts(check, check.policy)
    if record.valid:
        yield (
            "The last columns say how many steps fit each gate alone: Gaussian steps "
            "with noise multiplier 20, and steps that are 0.1-DP. An odometer admits "
            "up to its halt; idle is what it reads before any step."
        )
    if not record.compared:
        yield "There is no ledger yet to compare with; `dpflow ledger init` makes one."
    for error in record.errors:
        fail(error.message)


def _policy_parts(check: PolicyCheck, policy: Policy) -> Iterator[Part]:
    from dpflow.forecast.advice import steps_text
    from dpflow.policy.reserved import run_lines
    from dpflow.show.guarantees import shares_in_words, terms_in_words

    name = (short_path(check.path), "bold")
    yield [name, f"  dataset {policy.dataset}  ", ("valid", "green")]
    yield from filter(None, _guarantee(policy, check).values())
    if shares := shares_in_words(check.pinned):
        yield shares
    yield ""
    yield _gates_sheet(check.gates, policy)
    yield ""
    yield from run_lines(check.pinned)
    if check.standing is not None:
        style = "yellow" if check.differences else ""
        yield check.standing_text, "bold red" if check.refused else style
        if check.terms:
            yield terms_in_words(check.terms)
        yield ""
    for weak in check.warnings:
        yield [("weak: " if weak.is_weak else "note: ", "bold yellow"), weak.line]
    if check.suggestion is not None:
        steps = steps_text(check.workload)
        yield f"Workload ({check.origin}): {steps}. {check.suggestion.text}"
    if check.warnings or check.suggestion is not None:
        yield ""


def _gates_sheet(gates: list[GateCheck], policy: Policy) -> Sheet:
    """Return the gates of a policy, with the constants of their rules."""
    from dpflow.ledger.views.entries import account_title

    costs = [*gates[0].counts] if gates else []
    rows = []
    for gate in gates:
        account = gate.account
        result = {n: v for n, v in account.parameters.items() if n != "theorem"}
        constants = ", ".join(_constant(name, value) for name, value in result.items())
        percent = getattr(policy.flows.get(account.name), "share", None)
        if isinstance(policy.other_flows, Mapping) and account.name not in policy.flows:
            percent = policy.other_flows["share_each"]
        if account.kind == "flow" and percent:
            constants = f"{percent} of the dataset's"
        texts = (account_title(account), account.theorem, constants)
        counts = [_count(*gate.counts[name]) for name in costs]
        rows.append((*texts, _threshold(account), *counts))
    return Sheet(("gate", "theorem", "constants", "threshold", *costs), rows, costs)


def _count(priced: bool, steps: int | None) -> str:  # noqa: FBT001
    return "no price" if not priced else "no end" if steps is None else str(steps)


def _constant(name: str, value: Any) -> str:
    """Write a rule's constant; steps and long lists briefly."""
    if isinstance(value, bool):
        return name if value else f"no {name}"
    if not isinstance(value, list):
        return f"{name} {_number(value)}"
    more = ["..."] * (len(value) > _STEPS_SHOWN)
    if name == "steps":
        times = [str(step["times"]) for step in value[:_STEPS_SHOWN]]
        return f"{' + '.join(times + more)} steps"
    return f"{name} {' and '.join([*map(_number, value[:_STEPS_SHOWN]), *more])}"


def _number(value: Any) -> str:
    """Write a number in its shortest exact form, and a member with its constants."""
    from dpflow.rounding import number_from_text, short_up

    if isinstance(value, dict):
        own = [_constant(*item) for item in value.items() if item[0] != "theorem"]
        return f"{value['theorem']} ({', '.join(own)})"
    try:
        number = number_from_text(str(value))
    except (ValueError, ArithmeticError):
        return str(value)
    short = short_up(number)
    return short if number_from_text(short) == number else str(value)


def _threshold(view: AccountView) -> str:
    """Say what a gate compares with."""
    from dpflow.rounding import number_from_text, reading_up, short_down

    if view.reading is not None:
        halt = "never" if view.halt_at is None else f"at {float(view.halt_at):g}"
        return f"halts {halt}, idle {reading_up(view.reading)}"
    amounts = {name: text for name, text in (view.budget or {}).items() if text != "0"}
    # A sequence counts each of its costs.
    parts = [
        f"{name.partition('(')[0]} {short_down(number_from_text(text))}"
        for name, text in amounts.items()
    ]
    return ", ".join(parts) or "no box"


def _guarantee(policy: Policy, check: PolicyCheck) -> dict[str, str]:
    """Say what a policy guarantees, with the term's budget where it governs."""
    from dpflow.ledger import view_policy
    from dpflow.show.guarantees import odds_in_words, term_guarantee

    terms = check.terms if check.same else ()
    return {
        "guarantee": term_guarantee(policy.to_declared(), terms),
        "odds": odds_in_words(check.pinned, terms or [view_policy(policy)]),
    }


def _data(record: PolicyFindings) -> dict[str, object]:
    policies = [
        {**data_of(check), **_guarantee(check.policy, check), "gates": check.gates}
        for check in record.files
        if check.policy
    ]
    return {"fine": record.fine, "policies": policies, "errors": record.errors}
