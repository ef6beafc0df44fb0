"""The facts of the CDNOW data and, by brute force, the sensitivities of its statistics.

The neighbouring relation is add-or-remove of one customer with all of their rows. The
real weeks are searched over every customer; hypothesis builds the customers that the
data set does not have (refunds, fortunes, hundreds of rows).
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flows import data
from tests.sizes import spread

SMALLEST, MEDIAN = "1998-W27", "1997-W48"
LARGEST_INT = 2**63 - 1

Statistic = Callable[[pd.DataFrame], object]
STATED = [
    (data.active_customers, 1),
    (data.revenue_cents, data.CLIP_CENTS),
    (data.basket_sizes, 1),
]


def distance_squared(one: object, other: object) -> int:
    """Return the squared L2 distance of two statistics, without any rounding."""
    left, right = np.ravel(np.asarray(one)), np.ravel(np.asarray(other))
    pairs = zip(left.tolist(), right.tolist(), strict=True)
    return sum((int(a) - int(b)) ** 2 for a, b in pairs)


def changes(statistic: Statistic, frame: pd.DataFrame) -> Iterator[int]:
    """Yield the squared change of a statistic by each removal of one customer."""
    before = statistic(frame)
    for customer in frame["customer"].unique().tolist():
        neighbour = frame.loc[frame["customer"] != customer]
        yield distance_squared(before, statistic(neighbour))


def table(rows: list[tuple[int, int, int]]) -> pd.DataFrame:
    """Build a frame of purchases on one day out of (customer, cds, cents)."""
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    return pd.DataFrame(
        {
            "customer": np.array(columns[0], dtype=np.int64),
            "date": pd.to_datetime(["1997-01-01"] * len(rows)),
            "cds": np.array(columns[1], dtype=np.int64),
            "cents": np.array(columns[2], dtype=np.int64),
        }
    )


#: Unsound variants with the sensitivity that they would need.
UNSOUND: list[tuple[Statistic, int]] = [
    # Money without a clip, and purchases clipped in place of customers.
    (lambda frame: frame["cents"].sum(), data.CLIP_CENTS),
    (lambda frame: frame["cents"].clip(0, data.CLIP_CENTS).sum(), data.CLIP_CENTS),
    # Purchases counted in place of customers, per bucket and in all.
    (lambda f: data.basket_sizes(f.assign(customer=np.arange(len(f)))), 1),
    (len, 1),
]


def test_the_file_has_the_published_customers_and_rows() -> None:
    """The data holds 23,570 customers and 69,659 purchases in the study period."""
    frame = data.all_purchases()
    assert len(frame) == 69_659
    assert frame["customer"].nunique() == 23_570
    assert frame["date"].min() == pd.Timestamp(data.FIRST_DAY)
    assert frame["date"].max() == pd.Timestamp(data.LAST_DAY)


def test_an_altered_file_is_refused(tmp_path, monkeypatch):
    """One changed byte fails the checksum, in the check and in the load."""
    content = data.purchases_file().read_bytes()
    (tmp_path / data.FILE_NAME).write_bytes(content.replace(b"11.77", b"11.78", 1))
    monkeypatch.setenv("DPFLOW_DATA", str(tmp_path))
    for load in (data.purchases_file, lambda: data.purchases(SMALLEST)):
        with pytest.raises(ValueError, match="sha256"):
            load()


def test_missing_data_says_how_to_install_it(tmp_path, monkeypatch):
    """Without the file the error says what to install, and imports nothing."""
    monkeypatch.delenv("DPFLOW_DATA", raising=False)
    monkeypatch.delitem(sys.modules, "lifetimes", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    for module in (None, "raise SystemExit('lifetimes was imported')"):
        if module is not None:
            (tmp_path / "lifetimes").mkdir()
            (tmp_path / "lifetimes" / "__init__.py").write_text(module)
            importlib.invalidate_caches()
        with pytest.raises(FileNotFoundError, match=r"pip install lifetimes=="):
            data.purchases_file()


def test_removing_anybody_stays_within_the_sensitivity() -> None:
    """Over every customer of a week the largest change is exactly the sensitivity."""
    for week in spread([SMALLEST, "1997-W01", MEDIAN], 1):
        for statistic, sensitivity in STATED:
            assert max(changes(statistic, data.purchases(week))) == sensitivity**2


def test_unsound_variants_exceed_the_sensitivity() -> None:
    """The same search finds a customer of the median week who breaks the bound."""
    for unsound, sensitivity in UNSOUND:
        removals = changes(unsound, data.purchases(MEDIAN))
        assert any(change > sensitivity**2 for change in removals)


EDGES = [0, -1, data.CLIP_CENTS, data.CLIP_CENTS + 1, LARGEST_INT, -(2**62)]
AMOUNTS = st.integers(-(10**6), 10**6) | st.sampled_from(EDGES)
COUNTS = st.integers(-3, 12) | st.sampled_from([LARGEST_INT, -LARGEST_INT, 10**9])
OTHERS = st.lists(st.tuples(st.integers(1, 6), COUNTS, AMOUNTS), max_size=25)
ONE_CUSTOMER = st.lists(st.tuples(st.just(0), COUNTS, AMOUNTS), max_size=60)


@settings(deadline=None)
@given(others=OTHERS, rows=ONE_CUSTOMER)
def test_adding_any_customer_stays_within_the_sensitivity(others, rows):
    """Any rows of one more customer, even overflowing ones, move it by the bound."""
    before, after = table(others), table(others + rows)
    for statistic, sensitivity in STATED:
        change = distance_squared(statistic(before), statistic(after))
        assert change <= sensitivity**2
