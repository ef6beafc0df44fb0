"""One execution: its noise, its output, its release key, and its private arguments."""

from __future__ import annotations

import copy
import gc
import json
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from dpflow import guarded, release, spend
from dpflow.exceptions import ConfigurationError, ReleaseError, ReservationConflict
from dpflow.guard.charge import run
from dpflow.guard.request import EnclosingFlow, StepContext
from dpflow.guard.reserving import Call
from dpflow.guard.step import define_step
from tests.guard.test_identity import of_kind
from tests.projects import (
    NOISY,
    TENTH,
    caught,
    journal,
    ledger_bytes,
    outcome,
    rows,
    spent,
)

pytestmark = pytest.mark.quick


def test_threads_of_one_step_share_its_one_draw(shop, monkeypatch):
    """A thread that asks while another one draws gets no second noisy value."""
    drawing, go_on = threading.Event(), threading.Event()

    def draw_slowly(cost, value, *_, **__):
        drawing.set()
        assert go_on.wait(30)
        return value

    monkeypatch.setattr("dpflow.noise.draws.draw", draw_slowly)
    with spend(dataset="shop", cost=NOISY, step="count") as charge:
        with ThreadPoolExecutor() as pool:
            first = pool.submit(charge.release, 1.0)
            assert drawing.wait(30)
            second = pool.submit(caught, lambda: charge.release(2.0))
            go_on.set()
        assert first.result() == 1.0
        assert isinstance(second.result(), ReleaseError)


def test_copies_of_an_execution_share_its_one_draw(shop):
    """Made before the draw, each would draw for one charge."""
    for first in range(3):
        with spend(dataset="shop", cost=NOISY, step="count") as charge:
            copies = [charge, copy.copy(charge), replace(charge)]
            copies[first].release(1.0)
            for each in copies:
                with pytest.raises(ReleaseError, match="covers one draw"):
                    each.release(1.0)
        assert journal()[-1].body["noise"] == "opendp"


def test_release_after_the_end_of_its_step_is_refused(shop):
    """The journal has said by then that no noise was drawn."""
    with spend(dataset="shop", cost=TENTH, step="count") as charge:
        pass
    with pytest.raises(ReleaseError, match="had ended"):
        charge.release(1.0)
    with pytest.raises(ReleaseError, match="outside the body"):
        release(1.0)


def a_coroutine():
    """Return what reads the data when a caller awaits it."""

    async def later():
        return "private"

    return later()


def test_an_output_that_is_yet_to_be_computed_is_refused(shop):
    """It would read the data after the settlement, outside the guard."""
    for lazy in (lambda: (value for value in "private"), a_coroutine):
        step = guarded(dataset="shop", cost=TENTH, name="lazy")(lazy)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a coroutine without an await
            with pytest.raises(ReleaseError, match="Return the whole output"):
                step()
            gc.collect()
        assert outcome()["outcome"] == "failed"
    assert spent() == "0.2"


#: A place inside a flow run, as Prefect reports it.
CONTEXT = StepContext(flows=(EnclosingFlow(name="report", run="run-1"),))


def test_two_steps_of_one_name_do_not_replay_each_other(shop):
    """The default key knows where a body was written; other code is an error."""

    class Spend:
        @staticmethod
        def count(week):
            return f"spend in {week}"

    class Visits:
        @staticmethod
        def count(week):
            return f"visits in {week}"

    for body in (Spend.count, Visits.count):
        step = define_step(body, dataset="shop", cost=TENTH)
        assert run(Call(step, (1,), {}, CONTEXT)) == body(1)
    assert spent() == "0.2"
    few, many = (
        define_step(of_kind(kind), dataset="shop", cost=NOISY)
        for kind in ("few", "many")
    )
    assert run(Call(few, (1,), {}, CONTEXT)) == run(Call(few, (1,), {}, CONTEXT))
    with pytest.raises(ReservationConflict, match=r"other code.*moved_from="):
        run(Call(many, (1,), {}, CONTEXT))
    assert spent() == "0.3"


def test_an_argument_that_cannot_identify_a_release_is_refused(shop):
    """Private data needs a version; an object is private, or the release has a name."""

    def count(model):
        pytest.fail("the body ran")

    before = rows(shop)
    for private, argument, advice in (
        (("model",), "x", "Say data_version= on the task"),
        ((), object(), r"Mark it private=\('model',\)"),
    ):
        step = define_step(count, dataset="shop", cost=TENTH, private=private)
        with pytest.raises(ConfigurationError, match=advice):
            run(Call(step, (argument,), {}, CONTEXT))
    assert before == rows(shop)


def test_the_public_arguments_are_digested_with_the_ledgers_own_key(shop):
    """Without the ledger's secret the default key shows nothing of the arguments."""

    def count(week):
        return 1

    step = define_step(count, dataset="shop", cost=TENTH)
    run(Call(step, ("public-canary",), {}, CONTEXT))
    (row,) = rows(shop)["release"]
    assert "public-canary" not in json.dumps(row)
    assert b"public-canary" not in ledger_bytes(shop)
