"""No text shows who takes part or what a person has spent."""

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
#: A cost of one person; no text may hold it.
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
    lambda v: f"{v} {v!r} {v:>40} {v:.3f}",
    lambda v: "%s" % (v,),  # noqa: UP031
    logged,
    traced,
    rich_traced,
    pprint.pformat,
    pretty_repr,
    lambda v: json.dumps({"value": v}, default=str),
    lambda v: repr([v, {"a": v}, (v,)]),
]
#: Copies, comparisons, counts and walks.
REFUSED = [
    *(pickle.dumps, cloudpickle.dumps, copy.copy, copy.deepcopy, np.asarray),
    *(list, len, bool, float, bytes, hash),
    lambda v: v == v,  # noqa: PLR0124
    lambda v: v < v,  # noqa: PLR0124
    lambda v: v[0],
    lambda v: True in v,
    lambda v: [1][v],
    lambda v: list(reversed(v)),
]
#: Operators, buffers, dictionaries of an instance and JSON.
UNSUPPORTED = [
    *(json.dumps, vars, dataclasses.asdict, memoryview, sum),
    lambda v: v + 1,
    lambda v: 1 + v,
    lambda v: ~v,
    lambda v: np.add(v, 1),
    lambda v: v(),
]


def test_texts_are_the_same_for_all_values():
    """Logs, tracebacks with locals and viewers show a placeholder and no value."""
    some = tally_and_mask([CANARY_COST, 2.0, 0.5])
    others = tally_and_mask([2.0, 0.25, CANARY_COST])
    for show in SHOWN:
        for one, other in zip(some, others, strict=True):
            text, same = (
                re.sub("0x[0-9a-f]+", "", show(value).replace(str(id(value)), ""))
                for value in (one, other)
            )
            assert "withheld" in text
            assert same == text
            for trace in ("123456", "1973", "array", "[[", "0.25"):
                assert trace not in text


def test_every_other_use_is_refused():
    """No way to copy, store, compare, count or walk the values exists."""
    for value in tally_and_mask([CANARY_COST, 2.0, 0.5]):
        for use in [*REFUSED, *UNSUPPORTED]:
            with pytest.raises((TypeError, ReleaseError)) as caught:
                use(value)
            assert "123456" not in str(caught.value)
            if use in REFUSED:
                assert isinstance(caught.value, ReleaseError)
                assert caught.value.details == {}


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
        first = bytes(contents.tally.to_store()[:8])
    assert first in place.people.read_bytes()
    assert first[2:7] not in place.file.read_bytes()
