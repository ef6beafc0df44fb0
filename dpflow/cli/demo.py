"""`dpflow demo`: the main job, end to end, on real data."""

from __future__ import annotations

import typer

from dpflow.cli.output import say, say_json


def demo(*, as_json: bool = False) -> None:
    """Run a weekly report on real data until its budget is used up.

    True values are shown because this data set is public.

    Example: `dpflow demo`
    """
    from dpflow.starter.demo import run_demo  # noqa: PLC0415

    facts = run_demo((lambda _: None) if as_json else say)
    if as_json:
        say_json(facts)
    elif facts["refusal"] is not None:
        weeks = f"{len(facts['published'])} weeks were published in reports/, with a "
        say(
            "",
            f"Week {facts['halted']} was refused, and nothing was published for it:",
            facts["refusal"],
            "",
            weeks + "burn-down picture. A second demo spends nothing.",
            "Next: `dpflow status`, `dpflow history`, `dpflow policy check`.",
        )
    raise typer.Exit(int(facts["refusal"] is None))
