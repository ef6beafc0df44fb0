"""Several guarantees in one policy: each step is charged to all of them or to none."""

from __future__ import annotations

from collections import Counter
from datetime import date
from fractions import Fraction
from random import Random

import mpmath
import pytest

from dpflow import Gaussian
from dpflow.exceptions import BudgetExhausted, BudgetRefused, PolicyError
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.views import accounts
from dpflow.policy import Policy, parse_policy
from dpflow.policy.changes import judge, overall
from tests.ledger.journals import audit
from tests.ledger.support import Place, granted, make_ledger
from tests.sizes import spread

TEXT = """
dataset: views
relation: add-or-remove
filter: basic
guarantees:
  - {unit: reader-day, epsilon: 1}
  - {unit: reader-week, epsilon: 2}
  - {unit: reader-month, epsilon: 3}
  - {unit: reader, epsilon: 5}
"""
POLICY = parse_policy(TEXT)
CAPS = {"day": 1, "week": 2, "month": 3, "life": 5}
GAUSSIAN = """
dataset: views
relation: add-or-remove
filter: gaussian
guarantees:
  - {unit: reader-day, epsilon: 1, delta: 1e-6}
  - {unit: reader-month, epsilon: 2, delta: 1e-6}
  - {unit: reader, epsilon: 3, delta: 1e-6}
"""


def charge(
    ledger: Ledger, *days: str, cost: Gaussian | str = "0.5", policy: Policy = POLICY
) -> str:
    """Reserve a step that reads some days, and settle it."""
    found = granted(ledger, cost, policies=(policy,), partitions=days)
    ledger.settle(found)
    return found


def spent(ledger: Ledger) -> dict[str, Fraction]:
    """Return what each account has spent, by the name of its period."""
    return {
        view.name: Fraction(view.spent["epsilon"])
        for view in accounts(ledger)
        if view.kind in ("partition", "dataset")
    }


def test_a_step_is_charged_to_every_guarantee_for_the_days_it_reads(
    ledger: Ledger,
) -> None:
    """The first of February is in the week of the last days of January."""
    charge(ledger, "2026-01-30", "2026-01-31", "2026-02-01", cost="0.25")
    day, week, month, other, life = (Fraction(k, 4) for k in (1, 3, 2, 1, 3))
    assert spent(ledger) == {
        "2026-01-30": day,
        "2026-01-31": day,
        "2026-02-01": day,
        "2026-W05": week,
        "2026-01": month,
        "2026-02": other,
        "": life,
    }
    audit(ledger)


def test_a_full_period_refuses_and_nothing_is_charged(ledger: Ledger) -> None:
    """All or none: the day, the week and the life have room, the month has none."""
    for day in ("2026-01-01", "2026-01-08", "2026-01-15"):
        charge(ledger, day, cost="1")
    before = spent(ledger)
    with pytest.raises(BudgetExhausted, match="partition '2026-01'"):
        charge(ledger, "2026-01-22", "2026-02-02", cost="0.01")
    assert spent(ledger) == before
    charge(ledger, "2026-02-02", cost="1")
    audit(ledger)


def lived(steps: list[tuple[str, ...]], prices: list[Fraction], days: set[str]):
    """Return the loss of a reader who was there on some days, by basic composition."""
    return sum(
        price * len(days & {*read}) for read, price in zip(steps, prices, strict=True)
    )


def play(ledger: Ledger, policy: Policy, seed: int):
    """Let an analyst ask for what they like until nothing fits any more."""
    random, steps, prices = Random(seed), [], []
    days = [f"2026-{month:02d}-{day:02d}" for month in (1, 2) for day in range(1, 29)]
    near = days[:10] if seed % 2 else days
    for _ in range(80):
        read = tuple(sorted(random.sample(near, random.choice((1, 1, 2, 5)))))
        price = random.choice((Fraction(1, 10), Fraction(1, 4), Fraction(1)))
        try:
            charge(ledger, *read, cost=str(float(price)), policy=policy)
        except BudgetRefused:
            continue
        steps.append(read)
        prices.append(price)
    return steps, prices


@pytest.mark.parametrize("seed", spread(range(4), 2))
def test_a_reader_of_k_days_loses_no_more_than_each_cap(path: Place, seed: int) -> None:
    """Whoever lives in all days of a period; and what caps do not bind is told."""
    ledger = make_ledger(path)
    steps, prices = play(ledger, POLICY, seed)
    worst = periods_of(steps, prices)
    assert {name: worst[name] <= CAPS[name] for name in CAPS} == dict.fromkeys(
        CAPS, True
    )
    # The caps are met, so the search could find a broken one.
    assert worst["life"] > 4 or worst["month"] > 2
    audit(ledger)
    ledger.close()


def periods_of(steps, prices) -> dict[str, Fraction]:
    """Return the largest loss of a reader over each kind of period."""
    days = {day for read in steps for day in read}
    groups: dict[str, Counter[str]] = {name: Counter() for name in CAPS}
    for day in days:
        loss = lived(steps, prices, {day})
        year, week, _ = date.fromisoformat(day).isocalendar()
        names = {"day": day, "week": f"{year}/{week}", "month": day[:7], "life": ""}
        for kind, name in names.items():
            groups[kind][name] += loss
    return {kind: max(found.values()) for kind, found in groups.items()}


def test_without_the_guarantee_of_the_month_the_same_analyst_breaks_it(
    path: Place,
) -> None:
    """The negative control: the search finds a month that loses more than 3."""
    ledger = make_ledger(path)
    text = "".join(
        line
        for line in TEXT.splitlines(keepends=True)
        if "reader-month" not in line and "reader-week" not in line
    )
    steps, prices = play(ledger, parse_policy(text), 1)
    assert periods_of(steps, prices)["month"] > CAPS["month"]
    ledger.close()


def delta_of(mu: mpmath.mpf, epsilon: int) -> mpmath.mpf:
    """Return the exact delta of a Gaussian of mu at an epsilon."""
    with mpmath.workdps(50):
        return mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * mpmath.ncdf(
            -mu / 2 - epsilon / mu
        )


def test_gaussians_on_groups_meet_the_caps_exactly(ledger: Ledger) -> None:
    """A reader of both days shifts each noise by twice; the month fills before all."""
    policy, charged = parse_policy(GAUSSIAN), 0
    cost = Gaussian(sensitivity=1, noise_multiplier=20)
    pairs = [
        (f"2026-01-{day:02d}", f"2026-01-{day + 1:02d}") for day in range(1, 28, 2)
    ]
    full = None
    for pair in (pair for pair in pairs for _ in range(8)):
        try:
            charge(ledger, *pair, cost=cost, policy=policy)
        except BudgetExhausted as refused:
            full = refused.message
            break
        charged += 1
    assert "partition '2026-01' of" in str(full)
    with mpmath.workdps(50):
        together = [mpmath.sqrt(k) / 10 for k in (charged, charged + 1)]
    assert delta_of(together[0], 2) <= mpmath.mpf("1e-6") < delta_of(together[1], 2)


def test_each_guarantee_has_its_sentence() -> None:
    """In `policy check`, with what it is kept within."""
    said = POLICY.guarantee_sentence()
    for words in (
        "Every reader-day (add-or-remove): all releases",
        "Each day (UTC) has this budget to itself",
        "reader-week: what one reader did in one week is kept within (epsilon = 2",
        "reader-month: what one reader did in one month is kept within (epsilon = 3",
        "Over all days together, one reader is kept within (epsilon = 5",
    ):
        assert words in said


def test_guarantees_are_not_changed_in_place() -> None:
    """Their accounts have seen everything under the old ones only."""
    looser = parse_policy(TEXT.replace("epsilon: 3", "epsilon: 2.5"))
    assert overall(judge(POLICY.declared(), looser.declared())) == "other"
    spelt = parse_policy(TEXT.replace("epsilon: 3", "epsilon: 3.0"))
    assert judge(POLICY.declared(), spelt.declared()) == ()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("unit: reader-week", "unit: user-week"),
        ("unit: reader-week", "unit: reader-day"),
        ("unit: reader, ", "unit: user, "),
        ("reader-day", "reader-week2"),
        ("filter: basic", "filter: basic\nbudget: {epsilon: 2}"),
        ("filter: basic", "filter: basic\npartition: {by: region}"),
        ("filter: basic", "filter: basic\nlifetime: {epsilon: 9}"),
    ],
)
def test_guarantees_that_do_not_go_together_are_refused(old: str, new: str) -> None:
    """Of two people, twice the same, in parts of two periods, or said twice."""
    with pytest.raises(PolicyError):
        parse_policy(TEXT.replace(old, new))


def test_weeks_are_in_no_month() -> None:
    """A week of two months would be charged to neither in full."""
    with pytest.raises(PolicyError, match="may be in two months"):
        parse_policy(TEXT.replace("  - {unit: reader-day, epsilon: 1}\n", ""))
