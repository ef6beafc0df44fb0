"""Nothing shows who takes part or what anybody has left."""

from __future__ import annotations

import copy
import dataclasses
import io
import json
import logging
import pickle
import pprint
import re
import traceback
import uuid

import cloudpickle
import numpy as np
import pytest
from rich.console import Console
from rich.pretty import pretty_repr

from dpflow.accounting.rules.individual import IndividualBound
from dpflow.exceptions import InvalidCost, ReleaseError
from dpflow.people import PrivateTally
from tests.people.places import Place, store_of

pytestmark = pytest.mark.quick

BOUND = IndividualBound(measure="rdp", order=8, bound=1)
#: What people have left if they spent the first cost; no text may hold it.
CANARY_COST = 0.123456789012345


def tally_and_mask(costs):
    """Make a tally that one step has charged, and the mask of that step."""
    tally = PrivateTally(BOUND, people=len(costs))
    return tally, tally.admit(np.array(costs))


def logged(value) -> str:
    """Log a value in every way."""
    stream = io.StringIO()
    logger = logging.getLogger(f"canary.{uuid.uuid4()}")
    logger.propagate = False
    # Other libraries raise the root logger's level.
    logger.setLevel(logging.WARNING)
    logger.addHandler(logging.StreamHandler(stream))
    logger.warning("%s %r", value, value, extra={"value": value})
    return stream.getvalue()


def traced(value) -> str:
    """Format a traceback that shows local variables."""
    try:
        json.dumps(value)
    except TypeError as error:
        shown = traceback.TracebackException.from_exception(error, capture_locals=True)
        return "".join(shown.format())
    return ""


def rich_traced(value) -> str:
    """Show a traceback with local variables, as Prefect and typer do."""
    console = Console(file=io.StringIO(), width=200)
    try:
        value + 1
    except TypeError:
        console.print_exception(show_locals=True)
    return console.file.getvalue()


SHOWN = [
    repr,
    str,
    lambda v: f"{v} {v!r} {v:>40} {v:.3f}",
    lambda v: "%s" % (v,),  # noqa: UP031
    ascii,
    logged,
    traced,
    rich_traced,
    pprint.pformat,
    pretty_repr,
    lambda v: json.dumps({"value": v}, default=str),
    lambda v: repr([v, {"a": v}, (v,)]),
]

REFUSED = [
    pickle.dumps,
    cloudpickle.dumps,
    copy.copy,
    copy.deepcopy,
    list,
    len,
    bool,
    float,
    bytes,
    hash,
    np.asarray,
    lambda v: v == v,  # noqa: PLR0124
    lambda v: v < v,  # noqa: PLR0124
    lambda v: v[0],
    lambda v: True in v,
    lambda v: {v},
    lambda v: [1][v],
    lambda v: list(reversed(v)),
    lambda v: not v,
    lambda v: sorted([v, v]),
]

UNSUPPORTED = [
    json.dumps,
    vars,
    dataclasses.asdict,
    lambda v: v + 1,
    lambda v: 1 + v,
    lambda v: ~v,
    lambda v: np.add(v, 1),
    lambda v: np.ones(3) * v,
    memoryview,
    lambda v: v(),
    sum,
]


@pytest.mark.parametrize("show", SHOWN)
def test_texts_are_the_same_whatever_is_inside(show):
    """Logs, tracebacks with locals and viewers show a placeholder and no value."""
    some = tally_and_mask([CANARY_COST, 2.0, 0.5])
    others = tally_and_mask([2.0, 0.25, CANARY_COST])
    for one, other in zip(some, others, strict=True):
        text, same = (
            re.sub("0x[0-9a-f]+", "", show(value).replace(str(id(value)), ""))
            for value in (one, other)
        )
        assert "withheld" in text
        assert same == text
        for trace in ("123456", "1973", "array", "[[", "0.25"):
            assert trace not in text


@pytest.mark.parametrize("use", REFUSED)
def test_copies_comparisons_and_counts_are_refused(use):
    """Every way to copy, store, compare, count or walk the values is an error."""
    for value in tally_and_mask([CANARY_COST, 2.0, 0.5]):
        with pytest.raises(ReleaseError) as caught:
            use(value)
        assert "123456" not in str(caught.value)
        assert caught.value.details == {}


@pytest.mark.parametrize("use", UNSUPPORTED)
def test_operators_and_serialisers_find_nothing(use):
    """Operators, buffers, instance dictionaries and JSON do not exist."""
    for value in tally_and_mask([CANARY_COST, 2.0, 0.5]):
        with pytest.raises((TypeError, ReleaseError)) as caught:
            use(value)
        assert "123456" not in str(caught.value)


def test_errors_name_no_person_and_no_value():
    """An error about an array says what is wanted, not what is there."""
    tally, mask = tally_and_mask([CANARY_COST, 2.0, 0.5])
    calls = (
        lambda: tally.admit(np.array([CANARY_COST])),
        lambda: tally.admit([CANARY_COST]),
        lambda: mask.sum(np.array([CANARY_COST])),
    )
    for call in calls:
        with pytest.raises(InvalidCost) as caught:
            call()
        for trace in ("123456", "3"):
            assert trace not in str(caught.value).replace("float64", "")


def test_a_store_shows_no_value(tmp_path):
    """Its file holds the people's values, and the ledger none of them."""
    place = Place(tmp_path / "shop")
    with place.ledger() as ledger:
        store = store_of(ledger, place.folder)
        mask = store.reserve(["a", "b", "c"], lambda _: np.array([CANARY_COST, 2, 0.5]))
        assert repr(mask) == "<PrivateMask: withheld>"
        contents = store._read(store._state(store._charge).row("people/shop#1"))
        assert repr(contents).startswith("<dpflow.people.store._People object")
        left = contents.tally.to_store()[:8]
    assert bytes(left) in place.people.read_bytes()
    assert bytes(left)[2:7] not in place.file.read_bytes()
