"""Private arguments: no byte of the ledger, no log line and no error tells of them."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from dpflow import guarded
from dpflow.guard.charge import run
from dpflow.guard.request import EnclosingFlow, Place
from dpflow.guard.step import define_step
from tests.projects import TENTH, caught, ledger_bytes, rows, spent

pytestmark = pytest.mark.quick

PLACE = Place(flows=(EnclosingFlow(name="report", run="run-1"),))


def keyed():
    """Return a step that is replayed within its flow run, and its body."""

    def count(frame, week):
        return 1

    declared = {"dataset": "shop", "cost": TENTH, "private": ("frame",)}
    return define_step(count, data_version="1", **declared), count


PRIVATE = ("private-canary-2718281828", 57721566490)


def private_values():
    """Return canaries in every shape that private data comes in."""
    text, number = PRIVATE
    return [
        text,
        {text: number},
        pd.DataFrame({text: [number], "name": [text]}),
        np.array([number]),
    ]


@pytest.mark.parametrize("number", range(4))
def test_private_arguments_never_reach_the_ledger(shop, caplog, number):
    """No byte of the database, its logs, names or locks tells of them."""
    caplog.set_level("DEBUG")
    frame = private_values()[number]

    @guarded(
        dataset="shop",
        cost=TENTH,
        private=("frame",),
        release_key="released/{week}",
        ignore=("fails",),
    )
    def count(frame, week, fails=False):
        if fails:
            raise ValueError(frame)
        return "released-canary"

    count(frame, "public-canary")
    error = caught(lambda: count(frame, "other", fails=True))
    run(*keyed(), (frame, 1), {}, PLACE)
    found = ledger_bytes(shop)
    assert PRIVATE[1].to_bytes(8, "little") not in found
    for private in PRIVATE:
        assert str(private).encode() not in found
        assert str(private) not in caplog.text + str(error) + repr(vars(error))
    # The search works: what is public is there.
    assert b"public-canary" in found
    assert b"released-canary" in found
    assert spent() == "0.3"


def test_the_public_arguments_are_digested_with_the_ledgers_own_key(shop):
    """The default key tells nothing of the arguments without the ledger's secret."""
    run(*keyed(), ("x", "public-canary"), {}, PLACE)
    (row,) = rows(shop)["release"]
    assert "public-canary" not in json.dumps(row)
    assert b"public-canary" not in ledger_bytes(shop)
