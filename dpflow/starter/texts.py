"""The files of a new project: a policy, its schema, a flow."""

from __future__ import annotations

import json
import keyword
import re
import secrets
from dataclasses import dataclass

from dpflow.exceptions import require
from dpflow.policy import policy_schema
from dpflow.policy.strict_yaml import NUMBER


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What the project shall be; None takes the default."""

    dataset: str | None = None
    unit: str | None = None
    people: int | None = None
    epsilon: str | None = None
    delta: str | None = None
    theorem: str | None = None
    flow: str | None = None


def identifier(flow: str) -> str:
    """Return a name of a flow that Python can import."""
    name = re.sub(r"\W+", "_", flow, flags=re.ASCII).strip("_").lower()
    fits = name.isidentifier() and not keyword.iskeyword(name)
    require(fits, f"the flow's name {flow[:40]!r} must begin with a letter")
    return name


def policy_text(wishes: Wishes) -> str:
    """Return the first policy."""
    people = "" if wishes.people is None else f"check: {{people: {wishes.people}}}\n"
    return _POLICY.format(
        dataset=_scalar(wishes.dataset),
        source=_scalar(f"{wishes.dataset}-{secrets.token_hex(4)}"),
        unit=_scalar(wishes.unit),
        people=people,
        epsilon=_number(wishes.epsilon),
        delta=_number(wishes.delta),
        theorem=_scalar(wishes.theorem),
        why=_COMMENTS.get(str(wishes.theorem), ""),
        flow=_scalar(wishes.flow),
    )


def _scalar(text: str | None) -> str:
    """Write a text for YAML; what could be read as something else is quoted."""
    word = str(text)
    plain = re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", word)
    special = word.lower() in ("null", "true", "false", "yes", "no", "on", "off")
    return word if plain and not special else json.dumps(word, ensure_ascii=False)


def _number(text: str | None) -> str:
    """Write a number for YAML; what is none is quoted, and refused when it is read."""
    return str(text) if NUMBER.fullmatch(str(text)) else json.dumps(text)


def schema_text() -> str:
    """Return the schema of policies, for editors."""
    return json.dumps(policy_schema(), indent=2) + "\n"


def flow_text(wishes: Wishes, cost: str, policy: str) -> str:
    """Return the first flow, with a step of this cost under the policy's file."""
    words = {
        "POLICY": policy,
        "DATASET": json.dumps(wishes.dataset),
        "FLOW": json.dumps(wishes.flow, ensure_ascii=False),
        "UNIT": " ".join(str(wishes.unit).split()),
        "COST": cost,
        "KIND": cost.partition("(")[0],
        "NAME": identifier(wishes.flow or ""),
    }
    # All at once: what was put in is not read again.
    return re.sub("|".join(words), lambda found: words[found[0]], _FLOW)


_COMMENTS = {"gdp": "  # Gaussian, Laplace and pure steps; `auto` for mixtures"}
ROOT = """\
# The project's root: dpflow looks here for policies/ and .dpflow/.
[tool.dpflow]
"""
IGNORED = ".dpflow/\n__pycache__/\nvenv/\n.venv/\n"
_POLICY = """\
# yaml-language-server: $schema=policy.schema.json
dataset: {dataset}
# The data behind it, by a name of its own. The first ledger that charges it governs
# it: one that is made anew, and forgot what was spent, is refused.
source: {source}

# Whom the guarantee protects: nobody can tell whether any one of them is in the data.
unit: {unit}
relation: add-or-remove
{people}
# The most that all releases of one term together may lose. A new term is a decision
# with a reason; the budgets of several terms add up.
budget: {{epsilon: {epsilon}, delta: {delta}}}
filter: {theorem}{why}

# Only these flows may use the dataset.
flows:
  {flow}: {{}}

alerts: [0.5, 0.8, 0.95]
"""
_FLOW = '''\
"""A first private flow: one count a day, paid for from POLICY."""

import sys
from datetime import timedelta
from zoneinfo import ZoneInfo

from prefect import task
from prefect.runtime import flow_run

from dpflow import BudgetRefused, KIND, dp_flow, dp_task, release

ZONE = ZoneInfo("UTC")  # where the days of the data begin

# Private: put your own source here, and read it inside of the step.
ROWS = [number % 4000 for number in range(9000)]  # whose each row is


# The privacy unit: UNIT.
# Each is counted once, however many rows there are, so that adding or removing one
# changes the count by at most 1: that is the sensitivity.
@dp_task(
    dataset=DATASET,
    cost=COST,
    release_key="count/{day}",
)
def count(day: str) -> int:
    """Release how many there were; `release` draws the declared noise."""
    return release(len(set(ROWS)))


@task
def publish(day: str, number: int) -> None:
    """Say what was released; nothing private arrives here."""
    print(f"{day}: {number}")


@dp_flow(name=FLOW)
def NAME(day: str | None = None) -> None:
    """Release and publish one day's count; by default of the day before the schedule.

    That day has ended, so the count is complete: a release key keeps its first number.
    The schedule decides, not the clock: a late run and a retry replay the release.
    """
    if day is None:
        scheduled = flow_run.scheduled_start_time.astimezone(ZONE)
        day = (scheduled.date() - timedelta(days=1)).isoformat()
    publish(day, count(day))


if __name__ == "__main__":
    try:
        for day in sys.argv[1:] or [None]:
            NAME(day)
    except BudgetRefused as refusal:
        sys.exit(f"{type(refusal).__name__}: {refusal}")
'''
