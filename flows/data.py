"""The CDNOW purchases by week, and the three statistics that the report releases.

The data set holds every purchase, from 1997-01-01 to 1998-06-30, of 23,570 people
who first bought at the music shop CDNOW in early 1997 (Fader and Hardie). Its file
``CDNOW_master.txt`` comes with the package ``lifetimes``, or lies in the folder that
the environment variable ``DPFLOW_DATA`` names. Nothing is ever downloaded.

The privacy unit is the customer, and the neighbouring relation is add-or-remove: two
neighbouring data sets differ in all the rows of one customer. Every statistic below
has the form "sum over customers of g(the rows of that customer)". Adding or removing
a customer adds or removes exactly one term of that sum, so the L2 sensitivity is the
largest norm that g can take, whatever the other customers did. The same holds within
one week, because the rows of a customer in a week are a part of their rows.
A customer who bought in several weeks is in several releases: each has this
sensitivity, and the dataset's filter adds them up.

Money is counted in whole cents. Sums of floating-point dollars depend on the order of
the rows and are rounded, so that one customer could move such a sum by a little more
than the clip; sums of integers are exact.

A DP step that fails is charged in full and its message is withheld. So let a flow call
``purchases_file()`` and ``week_days(week)``, which find the same mistakes, before its
first DP step.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import io
import os
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

FILE_NAME = "CDNOW_master.txt"
FILE_SHA256 = "eff6889ed364c5199d6eacbbeb7a6d559971df4406ac876f322c373f00a072ef"

# Public: published with the data set, and never read from the rows.
FIRST_DAY = date(1997, 1, 1)
LAST_DAY = date(1998, 6, 30)

# 100 dollars: 94 of 100 customers spend less in a week.
CLIP_CENTS = 10_000

BASKET_LABELS = ("1", "2", "3", "4", "5-9", "10+")
# The number of CDs at which each bucket after the first one starts.
_BASKET_STARTS = (2, 3, 4, 5, 10)

_WEEK = timedelta(days=7)
SECONDS_PER_WEEK = _WEEK.total_seconds()
# A Monday; from it the weeks of the study are counted when they come round again.
_FIRST_MONDAY = datetime(2024, 1, 1, tzinfo=UTC)
_INSTALL = "Install the data with: pip install lifetimes==0.11.3"


def weeks() -> list[str]:
    """List the labels of the 79 weeks of the study, in order.

    A label such as ``"1997-W05"`` is the ISO 8601 week, Monday to Sunday. The labels
    are computed from the public study period and not from the rows. The first week
    has five days of the study, and the last one has two.

    Returns:
        ``"1997-W01"`` to ``"1998-W27"``.

    """
    monday = FIRST_DAY - timedelta(days=FIRST_DAY.weekday())
    labels = []
    while monday <= LAST_DAY:
        year, number, _ = monday.isocalendar()
        labels.append(f"{year}-W{number:02d}")
        monday += _WEEK
    return labels


def week_days(week: str) -> tuple[date, date]:
    """Return the Monday and the Sunday of a week.

    Args:
        week: A label out of ``weeks()``.

    Returns:
        The first and the last day of the week, both inclusive.

    Raises:
        ValueError: The label is not a week of the study.

    """
    known = weeks()
    if week not in known:
        msg = (
            f"{week!r} is not a week of the study. Use an ISO week from "
            f"{known[0]!r} to {known[-1]!r}."
        )
        raise ValueError(msg)
    monday = date.fromisocalendar(int(week[:4]), int(week[6:]), 1)
    return monday, monday + timedelta(days=6)


def week_at(moment: datetime, seconds_per_week: float = SECONDS_PER_WEEK) -> str:
    """Say which week of the study a moment stands for.

    The study is long over, so its weeks come round again and again. A moment stands
    for the same week at each call: a late tick of a schedule reports its own week, and
    a second one replays the releases of the first.

    Args:
        moment: When a scheduled report is due, with its time zone.
        seconds_per_week: How long a week of the study lasts; less than a week of the
            calendar makes time run faster.

    Returns:
        A label out of ``weeks()``.

    Raises:
        ValueError: A week cannot last that long.

    """
    if not seconds_per_week > 0:
        msg = f"a week lasts more than 0 seconds, got {seconds_per_week!r}"
        raise ValueError(msg)
    known = weeks()
    passed = (moment - _FIRST_MONDAY).total_seconds() // seconds_per_week
    return known[int(passed) % len(known)]


def purchases_file() -> Path:
    """Find the file of purchases and check that it is the published one.

    Returns:
        The file, in the folder ``DPFLOW_DATA`` if that is set, else in ``lifetimes``.

    Raises:
        FileNotFoundError: There is no such file; the message says how to install it.
        ValueError: The file's SHA-256 is not the one of the published data.

    """
    path = _find()
    _verified(path)
    return path


def purchases(week: str) -> pd.DataFrame:
    """Return the purchases of one week: private data.

    Args:
        week: A label out of ``weeks()``.

    Returns:
        One row per purchase, with the columns ``customer`` (int), ``date``
        (datetime64), ``cds`` (int) and ``cents`` (int). The frame is the caller's own.

    Raises:
        ValueError: The label is not a week of the study, or the file was altered.
        FileNotFoundError: The data is not installed.

    """
    monday, sunday = week_days(week)
    frame = _table(_find())
    inside = frame["date"].between(pd.Timestamp(monday), pd.Timestamp(sunday))
    return frame.loc[inside].reset_index(drop=True)


def all_purchases() -> pd.DataFrame:
    """Return the purchases of all weeks: private data.

    Returns:
        A frame with the columns of ``purchases``. The frame is the caller's own.

    Raises:
        ValueError: The file was altered.
        FileNotFoundError: The data is not installed.

    """
    return _table(_find()).copy()


def active_customers(frame: pd.DataFrame) -> int:
    """Count the customers with at least one purchase.

    Sensitivity: g is 1 for a customer with rows and 0 for one without. Hence the L2
    sensitivity is 1, however many rows a customer has.

    Args:
        frame: Purchases.

    Returns:
        The number of different customers.

    """
    return int(frame["customer"].nunique())


def revenue_cents(frame: pd.DataFrame, clip_cents: int = CLIP_CENTS) -> int:
    """Add up what the customers spent, each of them clipped, in cents.

    Sensitivity: g is the customer's total over all their rows, clipped to 0 at the
    bottom and to ``clip_cents`` at the top. Hence the L2 sensitivity is
    ``clip_cents``. Clipping rows instead of customers would not bound it, and
    without the bottom clip a refund could move the sum by any amount.

    Args:
        frame: Purchases.
        clip_cents: The most that one customer counts for; public.

    Returns:
        The clipped revenue, exact.

    Raises:
        ValueError: The clip is not positive.

    """
    if clip_cents <= 0:
        msg = f"clip_cents is {clip_cents}; it must be a positive number of cents."
        raise ValueError(msg)
    spent = frame.groupby("customer")["cents"].sum().clip(0, clip_cents)
    # Python integers: a 64-bit sum could wrap around under a huge clip.
    return sum(spent.to_list())


def basket_sizes(frame: pd.DataFrame) -> npt.NDArray[np.int64]:
    """Count the customers by how many CDs they bought, in the order of BASKET_LABELS.

    Sensitivity: g is the unit vector of the one bucket that the customer's total of
    CDs falls into. Hence the L2 sensitivity of the whole histogram is 1 (and the L1
    sensitivity too), for all six buckets together.

    The published file has at least one CD in every row. A total below 1, which a
    return could leave in other data, counts in the first bucket: a customer must
    always have exactly one.

    Args:
        frame: Purchases.

    Returns:
        Six counts.

    """
    bought = frame.groupby("customer")["cds"].sum().to_numpy(dtype=np.int64)
    bucket = np.searchsorted(_BASKET_STARTS, bought, side="right")
    counts = np.bincount(bucket, minlength=len(BASKET_LABELS))
    return counts.astype(np.int64)


def _find() -> Path:
    """Return the place of the file, whatever is in it."""
    folder = os.environ.get("DPFLOW_DATA")
    if folder:
        path = Path(folder) / FILE_NAME
        if not path.is_file():
            msg = (
                f"DPFLOW_DATA is {folder!r}, but that folder has no {FILE_NAME}. "
                f"Put the file there, or unset DPFLOW_DATA. {_INSTALL}"
            )
            raise FileNotFoundError(msg)
        return path
    # Importing lifetimes would load scipy and autograd; its spec knows the folder.
    spec = importlib.util.find_spec("lifetimes")
    for root in (spec.submodule_search_locations if spec else None) or ():
        path = Path(root) / "datasets" / FILE_NAME
        if path.is_file():
            return path
    msg = f"No {FILE_NAME}: the package 'lifetimes' is missing or empty. {_INSTALL}"
    raise FileNotFoundError(msg)


def _verified(path: Path) -> bytes:
    """Return the file's content, if it is the published one."""
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != FILE_SHA256:
        msg = (
            f"{path} is not the published {FILE_NAME}: its sha256 is not "
            f"{FILE_SHA256}. {_INSTALL}"
        )
        raise ValueError(msg)
    return content


@functools.cache
def _table(path: Path) -> pd.DataFrame:
    """Read the file once per process; callers get copies."""
    raw = pd.read_csv(io.BytesIO(_verified(path)), sep=r"\s+", dtype=str)
    return pd.DataFrame(
        {
            "customer": raw["customer_id"].astype("int64"),
            "date": pd.to_datetime(raw["date"], format="%Y%m%d"),
            "cds": raw["number_of_cds"].astype("int64"),
            "cents": pd.Series(
                [_cents(text) for text in raw["dollar_value"]], dtype="int64"
            ),
        }
    )


def _cents(dollars: str) -> int:
    """Turn text such as "19.99" into 1999; int(19.99 * 100) would be 1998."""
    cents = Decimal(dollars).scaleb(2)
    if cents != cents.to_integral_value():
        msg = f"{dollars!r} is not a whole number of cents."
        raise ValueError(msg)
    return int(cents)
