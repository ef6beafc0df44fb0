"""`dpflow init` and `demo`: a first private flow, of one's own or on real data."""

# ruff: noqa: PLC0415 (`dpflow --help` must not wait for the ledger)

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dpflow.cli.output import Answer, say, say_json, warn
from dpflow.config import short_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dpflow.starter.project import CreatedProject
    from dpflow.starter.texts import ProjectOptions

#: A policy that is fine, in which each answer is tried.
_PROBE = {"dataset": "a", "unit": "a", "relation": "add-or-remove", "filter": "basic"}


def init(
    *,
    dataset: str | None = None,
    unit: str | None = None,
    people: int | None = None,
    epsilon: str | None = None,
    delta: str | None = None,
    terms: int | None = None,
    theorem: str | None = None,
    flow: str | None = None,
    yes: bool = False,
    as_json: bool = False,
) -> Answer:
    """Create a policies folder, a first policy, a ledger and a flow that runs.

    In a terminal, the command asks a few questions. Existing files stay unchanged.

    Example: `dpflow init --dataset sales --unit customer --epsilon 1 --yes`
    """
    from dpflow.starter.project import make_project
    from dpflow.starter.texts import ProjectOptions

    options = ProjectOptions(
        dataset=dataset or "",
        unit=unit or "",
        people=people,
        epsilon=epsilon or "",
        delta=delta or "",
        theorem=theorem or "",
        flow=flow or "",
        terms=terms,
    )
    if not yes:
        if as_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
            msg = (
                "there is no terminal to ask questions on. Give --yes, and what the "
                "defaults do not fit: --dataset, --unit, --epsilon, --delta, --filter, "
                "--flow."
            )
            raise typer.BadParameter(msg)
        options = _ask_options(options)
    project = make_project(options)
    return project, _parts(project)


def _ask_options(options: ProjectOptions) -> ProjectOptions:
    """Ask for what was not given, with defaults that are sound."""
    from dpflow.starter.project import default_delta

    def ask(field: str, question: str, default: str) -> str:
        return getattr(options, field) or _ask(question, default, field)

    say("A few questions; Enter takes what is in brackets.", "")
    dataset = ask("dataset", "What is the private data called?", "visits")
    say("", "The guarantee protects one of something: whatever is in the data about")
    say("one of them can be added or removed without anyone noticing.")
    unit = ask("unit", "One what? (customer, patient, visitor, ...)", "visitor")
    people = options.people
    if people is None and not options.delta:
        question = f"About how many of them ({unit}) are there? 0 if unknown"
        people = max(int(typer.prompt(question, 0, type=int)), 0) or None
    say("", "Epsilon is what all releases of one term together may lose: 1 is strict,")
    say("3 is common, above 10 promises little. Delta is the chance that it is more.")
    epsilon = ask("epsilon", "Epsilon?", "1")
    delta = ask("delta", "Delta?", default_delta(people))
    terms = options.terms
    if terms is None:
        say("", "A new term has a new budget on the same rows. The lifetime limits all")
        say("terms together: what one of them can rely on.")
        terms = max(int(typer.prompt("For how many terms?", 1, type=int)), 1)
    theorem = options.theorem or _ask_filter(delta)
    flow = ask("flow", "What is the first flow called?", "daily-report")
    say("")
    answers: dict[str, Any] = {"people": people, "epsilon": epsilon, "delta": delta}
    answers |= {"dataset": dataset, "unit": unit, "theorem": theorem, "flow": flow}
    return replace(options, terms=terms, **answers)


def _ask_filter(delta: str) -> str:
    """Ask three questions, and say which filter follows and why."""
    from dpflow.starter.project import filter_for

    say("", "The filter is the theorem that admits steps. Three questions choose it.")
    noise = _ask_one_of("Noise of the steps?", ("gaussian", "laplace", "mixed"))
    use = _ask_one_of("Many reports, or one training?", ("reports", "training"))
    of = _ask_one_of("Is one row or one person protected?", ("rows", "people"))
    theorem, why = filter_for(noise=noise, use=use, of=of, delta=delta)
    say(f"The filter is {theorem}: {why}")
    return theorem


def _ask_one_of(question: str, words: tuple[str, ...]) -> str:
    while (word := _ask(f"{question} ({', '.join(words)})", words[0])) not in words:
        pass
    return word


def _ask(question: str, default: str, field: str = "") -> str:
    """Ask, and ask again where a policy with this answer would be refused."""

    def read(text: str) -> str:
        if field:
            _check(field, text.strip())
        return text.strip()

    return str(typer.prompt(question, default, value_proc=read))


def _check(field: str, text: str) -> None:
    from dpflow.exceptions import ConfigurationError, PolicyError
    from dpflow.policy import parse_policy
    from dpflow.starter.texts import identifier

    budget = {"epsilon": "1", "delta": "0"}
    if field in budget:
        budget[field] = text
    flows: dict[str, Any] = {text: {}} if field == "flow" else {}
    own = {field: text} if field in ("dataset", "unit") else {}
    policy = {**_PROBE, "budget": budget, "flows": flows, **own}
    try:
        parse_policy(json.dumps(policy), file="answer")
        if flows:
            identifier(text)
    except (PolicyError, ConfigurationError) as error:
        raise typer.BadParameter(error.message.removeprefix("answer:1: ")) from None


def _parts(project: CreatedProject) -> Iterator[str]:
    yield from (f"made  {short_path(path)}" for path in project.made)
    yield from (f"kept  {short_path(path)}, which was there" for path in project.kept)
    yield from ("", project.guarantee)
    if project.runs is not None:
        yield (
            "1 run of the flow fits."
            if project.runs == 1
            else f"{project.runs} runs of the flow fit."
        )
    yield from ("", "Next:")
    yield from (f"  {n}. {command}" for n, command in enumerate(project.commands, 1))
    for text in project.warnings:
        warn(text)


def demo(*, as_json: bool = False) -> None:
    """Run a weekly report on real data until its budget is exhausted.

    The output has true values, because this data set is public.

    Example: `dpflow demo`
    """
    from dpflow.starter.demo import run_demo

    began_in = Path.cwd()
    result = run_demo((lambda _: None) if as_json else say)
    if as_json:
        say_json(result)
    elif result["refusal"] is not None:
        weeks = f"{len(result['published'])} weeks were published in reports/, with a "
        folder = os.path.relpath(Path.cwd(), began_in)
        enter = "" if folder == "." else f"`cd {folder}`, "
        say(
            "",
            f"Week {result['halted']} was refused, and nothing was published for it:",
            result["refusal"],
            "",
            weeks + "burn-down picture. A second demo spends nothing.",
            f"Next: {enter}`dpflow status`, `dpflow history`, `dpflow policy check`.",
        )
    raise typer.Exit(int(result["refusal"] is None))
