"""One instant has one part and one release key, in the zone of the policy."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pendulum
import pytest

from dpflow import guarded, release
from dpflow.exceptions import ConfigurationError
from dpflow.guard.project import current_project
from dpflow.guard.release_keys import Arguments, fill, identify
from dpflow.interop import releasable
from dpflow.ledger.views import accounts
from dpflow.policy import parse_policy
from dpflow.policy.changes import judge, overall
from tests.projects import NOISY, POLICY, make_project
from tests.tables import read_tables

pytestmark = pytest.mark.quick

INSTANT = datetime(2026, 6, 30, 22, 30, tzinfo=UTC)
ZONES = (UTC, ZoneInfo("Europe/Berlin"), ZoneInfo("Asia/Tokyo"))
DAYS = POLICY.replace("customer", "customer-day") + "partition: {by: day}\n"
HOURS = POLICY.replace("customer", "customer-hour") + "partition: {by: hour}\n"
BERLIN = "zone: Europe/Berlin\n"
TABLES = read_tables(__file__)


@releasable
@dataclass(frozen=True)
class Due:
    """An argument with a time in it."""

    v: datetime


def charged_parts():
    """Return the parts of all accounts."""
    parts = accounts(current_project().ledger)
    return [view.name for view in parts if view.kind == "partition"]


def keyed(template, value, *zones):
    """Return the text of a template and the identity of its argument."""
    values = Arguments({"v": value}, zones or ("Europe/Berlin",))
    return fill(template, values), identify(["v"], template, values)["v"]


@pytest.mark.parametrize(("template", "text"), TABLES["aware"])
def test_an_aware_time_is_written_in_the_zone_of_the_policy(template, text):
    """Whatever its class and its own zone are, formats and attributes agree."""
    for make in (lambda time: time, pd.Timestamp, pendulum.instance):
        texts = {keyed(template, make(INSTANT.astimezone(zone))) for zone in ZONES}
        assert {key for key, _ in texts} == {text}
        assert len(texts) == 1
    assert keyed("{v[0].v:%d}", [Due(INSTANT)], "Japan")[0] == "01"
    instants = [keyed("{v}", (INSTANT.astimezone(zone),)) for zone in ZONES]
    assert len({*instants}) == 1


#: One day, as several types.
ONE_DAY = [
    date(2026, 6, 30),
    datetime(2026, 6, 30, 22, 30),  # noqa: DTZ001 (naive)
    pd.Timestamp("2026-06-30 22:30"),
    np.datetime64("2026-06-30T22:30"),
    np.datetime64("2026-06-30"),
    pd.Period("2026-06-30", "D"),
    "2026-06-30",
]


@pytest.mark.parametrize("value", ONE_DAY)
def test_dates_and_naive_times_of_one_day_are_one_key(value):
    """Under a date's format; a naive time is taken as it is in every zone."""
    for template, text in (("{v:%Y-%m-%d}", "2026-06-30"), ("{v:%G-W%V}", "2026-W27")):
        key = keyed(template, value)
        assert key == keyed(template, value, "Japan", "UTC") == (text, text)


def test_periods_that_a_format_does_not_name_and_other_texts_are_refused():
    """The first day of a month is no name of the month."""
    assert keyed("{v:%Y-%m}", pd.Period("2026-06", "M"))[0] == "2026-06"
    for value in (pd.Period("2026-06", "M"), "20260630", "2026-06", 20260630):
        with pytest.raises((ValueError, TypeError)):
            keyed("{v:%Y-%m-%d}", value)
    assert keyed("{v}", pd.NaT)[0] == "NaT"


@pytest.mark.parametrize("make", [lambda x: x, pd.Timestamp, pendulum.instance])
def test_the_second_of_two_equal_hours_has_its_offset(make):
    """Where the key shows the hour, and does not show the offset anyway."""
    hours = [make(datetime(2026, 10, 25, hour, 30, tzinfo=UTC)) for hour in (0, 1, 2)]
    for template, *texts in TABLES["equal_hours"]:
        assert [keyed(template, hour)[0] for hour in hours] == texts


#: Policy, template, and the part that is charged.
PARTS = [
    (DAYS + BERLIN, "{at:%Y-%m-%d}", "2026-07-01"),
    (DAYS, "{at:%Y-%m-%d}", "2026-06-30"),
    (HOURS + BERLIN, "{at:%Y-%m-%dT%H}", "2026-06-30T22"),
]


@pytest.mark.parametrize(("policy", "template", "part"), PARTS)
def test_an_instant_has_one_part_and_one_release(
    tmp_path, monkeypatch, policy, template, part
):
    """Hours are those of UTC in every zone; each instant is charged once."""
    make_project(tmp_path, monkeypatch, policy)
    key = {"partitions": template, "release_key": "count/{at:%Y-%m-%d %H}"}

    @guarded(dataset="shop", cost=NOISY, **key)
    def count(at):
        return release(1000)

    first = [count(INSTANT.astimezone(zone)) for zone in ZONES]
    assert len({*first}) == 1
    assert charged_parts() == [part]


def test_datasets_of_two_zones_are_refused_for_an_aware_time_only(
    tmp_path, monkeypatch
):
    """Before the reservation; parts of hours are those of UTC, and are not refused."""
    other = "dataset: other" + HOURS.removeprefix("dataset: shop")
    make_project(tmp_path, monkeypatch, HOURS, other + BERLIN)
    both = {"dataset": ["shop", "other"], "cost": NOISY}
    both["partitions"] = "{at:%Y-%m-%dT%H}"

    def body(at):
        return release(1000)

    count = guarded(**both, release_key="{at:%Y-%m-%d}")(body)
    count_hour = guarded(**both, fresh=True)(body)
    with pytest.raises(ConfigurationError, match="Europe/Berlin, UTC") as caught:
        count(INSTANT)
    assert "The step did not run" in str(caught.value)
    assert charged_parts() == []
    count(INSTANT.replace(tzinfo=None))
    count_hour(INSTANT.astimezone(ZONES[1]))
    assert charged_parts() == ["2026-06-30T22"] * 2


def test_a_zone_is_pinned_where_it_names_parts():
    """A change of it needs a new term there; elsewhere it only writes keys."""
    for text, pins in ((DAYS, True), (HOURS, False), (POLICY, False)):
        before, after = parse_policy(text), parse_policy(text + BERLIN)
        changes = judge(before.to_declared(), after.to_declared())
        assert overall(changes) == ("other" if pins else "same")
        assert ("zone" in after.to_pinned()) is pins
        assert before.to_declared() == parse_policy(text + "zone: UTC\n").to_declared()
    assert (
        "Each day (Europe/Berlin)" in parse_policy(DAYS + BERLIN).guarantee_sentence()
    )
