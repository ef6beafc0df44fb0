"""Steps inside the body of another one: nothing that the body read gets out by them."""

from __future__ import annotations

import contextlib
import logging
import traceback
import warnings
from collections import Counter
from pathlib import Path

import pytest

from dpflow import (
    EarlyStopping,
    Laplace,
    OutputDP,
    PureDP,
    guarded,
    iterations,
    preflight,
    release,
    spend,
)
from dpflow.exceptions import (
    BudgetExhausted,
    BudgetRefused,
    ConfigurationError,
    DpflowError,
    DPStepFailed,
    LedgerUnavailable,
    PublicError,
    ReleaseError,
    UnknownDataset,
)
from dpflow.guard.project import current_project
from dpflow.ledger.views.releases import releases
from tests.projects import (
    NOISY,
    POLICY,
    caught,
    chain,
    journal,
    kinds,
    ledger_bytes,
    make_project,
    rows,
    spent,
)

CANARY = "canary-" + "3141592653"

SHOP = POLICY + "alerts: [0.15, 0.8]\n"
PARTS = POLICY.replace("shop", "parts") + "partition: {by: shift}\n"


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """Return a project whose private data is a canary in a file."""
    make_project(tmp_path, monkeypatch, SHOP, PARTS)
    (tmp_path / "private.txt").write_text(CANARY, "utf-8")
    return tmp_path


def read_private():
    """Read the private data, as a body does."""
    return Path("private.txt").read_text("utf-8")


def step(**declared):
    """Return a guarded step over one argument, defined outside of every body."""

    def count(x=None):
        return 1

    declared = {"dataset": "shop", "cost": NOISY, "name": "inner", **declared}
    declared["noise"] = "own"
    return guarded(**declared)(count)


def fails(x):
    """Raise what was given."""
    raise ValueError(x)


class Hostile:
    """An argument whose own code tells what it holds."""

    def __init__(self, text):
        self.text = text

    def __getattr__(self, name):
        raise AttributeError(self.text)


KEYED = step(release_key="key/{x}")
DEARER = step(release_key="key/{x}", cost=PureDP(epsilon="0.2"))
HOSTILE = step(release_key="key/{x.year}")
TOO_MUCH = step(cost=PureDP(epsilon=5), release_key="key/{x}")
PARTED = step(dataset="parts", partitions="{x}")
COMPUTED = step(dataset="parts", partitions=lambda x: [x])
TWICE = step(dataset="parts", partitions=lambda x: [x, x])
NO_PARTS = step(dataset="parts", partitions=fails)
NO_COST = step(cost=fails)
TEXT_COST = step(cost=lambda x: x)
CELLS = step(cost=lambda x: OutputDP({x: "0.5", "none": "0.1"}))
FAILING = guarded(dataset="shop", cost=NOISY, name="inner")(fails)


def block(**declared):
    """Enter a block that another body asks for."""
    declared = {"dataset": "shop", "cost": NOISY, "step": "inner", **declared}
    with spend(**declared) as charge:
        charge.release(1.0)


def defined(x, **declared):
    """Define a step within a body, and call it."""
    step(**declared)(x)


def held(**declared):
    """Hold what steps within a body cost."""
    with preflight(**declared):
        pass


def conflict(x):
    """Ask for one key at two costs."""
    KEYED(x)
    DEARER(x)


def exhausted(x):
    """Ask for a name until nothing is left."""
    for _ in range(20):
        block(step=x)


def in_a_handler(x):
    """Be refused while an error with private text is handled."""
    try:
        fails(x)
    except ValueError:
        block(step=x, cost=PureDP(epsilon=5))


def raises(kind):
    """Raise an error of dpflow's own that the body makes."""

    def act(x):
        error = kind(x, step=x, dataset=x)
        error.add_note(x)
        raise error

    return act


ROUTES = {
    "block-name": lambda x: block(step=x),
    "block-name-refused": lambda x: block(step=x, cost=PureDP(epsilon=5)),
    "block-name-exhausted": exhausted,
    "block-dataset": lambda x: block(dataset=x),
    "block-datasets": lambda x: block(dataset=("shop", x)),
    "block-flow": lambda x: block(flow=x),
    "block-cost": lambda x: block(cost=x),
    "block-cells": lambda x: block(cost=OutputDP({x: "0.5", "none": "0.1"})),
    "block-partition": lambda x: block(dataset="parts", partitions=x),
    "block-parts-of-shop": lambda x: block(partitions=[x]),
    "block-in-handler": in_a_handler,
    "defined-name": lambda x: defined(x, name=x),
    "defined-dataset": lambda x: defined(x, dataset=x),
    "defined-flow": lambda x: defined(x, flow=x),
    "defined-version": lambda x: defined(x, data_version=x, release_key="k"),
    "defined-private": lambda x: defined(x, private=(x,)),
    "defined-key": lambda x: defined(x, release_key=x),
    "defined-template": lambda x: defined(x, release_key="{" + x + "}"),
    "defined-partitions": lambda x: defined(x, dataset="parts", partitions=x),
    "defined-cells": lambda x: defined(x, cost=OutputDP({x: "0.5", "none": "0.1"})),
    "key": KEYED,
    "key-refused": TOO_MUCH,
    "key-conflict": conflict,
    "key-hostile": lambda x: HOSTILE(Hostile(x)),
    "key-unknown": lambda x: KEYED(**{x: 1}),
    "partition": PARTED,
    "partition-unfit": lambda x: PARTED(x + " and more"),
    "partition-computed": COMPUTED,
    "partition-twice": TWICE,
    "partition-fails": NO_PARTS,
    "cost-fails": NO_COST,
    "cost-text": TEXT_COST,
    "cost-cells": CELLS,
    "fails": FAILING,
    "preflight-dataset": lambda x: held(costs={x: [NOISY]}),
    "preflight-flow": lambda x: held(costs={"shop": [NOISY]}, flow=x),
    "preflight-partition": lambda x: held(
        costs={"parts": [NOISY]}, partitions={"parts": [x]}
    ),
    "release": release,
    **{
        f"raises-{kind.__name__}": raises(kind)
        for kind in (
            BudgetExhausted,
            BudgetRefused,
            UnknownDataset,
            LedgerUnavailable,
            ReleaseError,
            DPStepFailed,
            ConfigurationError,
            DpflowError,
        )
    },
}


def by_guarded(act):
    """Run an act as the body of a guarded function."""

    @guarded(dataset="shop", cost=NOISY)
    def outer():
        act(read_private())
        return release(1.0)

    return outer()


def by_block(act):
    """Run an act as a block."""
    with spend(dataset="shop", cost=NOISY, step="outer") as charge:
        act(read_private())
        charge.release(1.0)


def by_two(act):
    """Run an act as the body of a step within another one's block."""
    with spend(dataset="shop", cost=NOISY, step="outer") as charge:
        innermost(act)
        charge.release(1.0)


@guarded(dataset="shop", cost=NOISY, private=("act",), data_version="1")
def innermost(act):
    """Stand between."""
    act(read_private())
    return release(1.0)


def quietly(act):
    """Return the act with its errors swallowed, as a body may."""

    def quiet(x):
        with contextlib.suppress(Exception):
            act(x)

    return quiet


def raised(call, *args):
    """Return the error that a call ends with, if it does."""
    try:
        call(*args)
    except Exception as error:
        return error
    return None


def texts(error):
    """Return all that an error tells, and all that is behind it."""
    if error is None:
        return ""
    found = [*traceback.format_exception(error)]
    for each in chain(error):
        found += [str(each), repr(each), repr(each.args), repr(vars(each))]
        found += getattr(each, "__notes__", ())
    return "\n".join(found)


@pytest.mark.parametrize("outer", [by_guarded, by_block, by_two])
@pytest.mark.parametrize("route", ROUTES)
def test_nothing_private_gets_out_by_a_step_inside_a_body(shop, caplog, route, outer):
    """Neither by errors nor by logs, warnings, or what the ledger keeps."""
    caplog.set_level(logging.DEBUG)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for act in (quietly(ROUTES[route]), ROUTES[route]):
            assert CANARY not in texts(raised(outer, act))
    assert CANARY not in caplog.text
    assert CANARY not in "".join(str(each.message) for each in warned)
    assert CANARY.encode() not in ledger_bytes(shop)
    assert CANARY not in repr(rows(shop))


def test_the_outer_step_is_charged_whatever_the_inner_one_does(shop):
    """Once for each time that its body ran."""
    for route in ("block-dataset", "partition", "defined-name", "key-hostile"):
        before = Counter(kinds())["settle"]
        caught(lambda route=route: by_guarded(ROUTES[route]))
        assert Counter(kinds())["settle"] == before + 1


# What is said


def test_a_refused_inner_step_says_that_the_outer_one_was_charged(shop):
    """It ends as a refusal, which nobody tries again; its own text is withheld."""
    inner = guarded(dataset="shop", cost=PureDP(epsilon=5), name="inner")(lambda: 1)

    @guarded(dataset="shop", cost=NOISY)
    def outer():
        inner()

    error = caught(outer)
    assert type(error) is BudgetRefused
    assert (error.step, error.dataset) == ("outer", "shop")
    assert "'outer' itself was charged in full" in error.message
    assert "othing was charged" not in error.message
    assert spent() == "0.1"


def test_an_inner_step_tells_its_body_what_kind_of_error_it_met(shop):
    """So that the body may go on without it."""
    seen = []

    @guarded(dataset="shop", cost=NOISY)
    def outer():
        for act in (ROUTES["block-name-refused"], ROUTES["block-dataset"]):
            try:
                act(read_private())
            except DpflowError as error:
                seen.append(error)
        return release(1.0)

    outer()
    assert [type(each) for each in seen] == [BudgetRefused, UnknownDataset]
    assert all("inside the body of DP step 'outer'" in e.message for e in seen)


def test_where_errors_are_kept_names_are_kept(tmp_path, monkeypatch):
    """The policy says that texts of this dataset are safe."""
    make_project(tmp_path, monkeypatch, POLICY + "errors: keep\n")

    @guarded(dataset="shop", cost=NOISY)
    def outer():
        block(step="named here")
        made = {"cost": NOISY, "noise": "own"}
        guarded(dataset="shop", name="defined here", **made)(lambda: 1)()
        KEYED("a")
        block(dataset="nowhere")

    error = caught(outer)
    assert type(error) is UnknownDataset
    assert "'nowhere'" in error.message
    names = {entry.body.get("step") for entry in journal()}
    assert {"named here", "defined here", "inner"} <= names


# What a nested step still is


def test_a_block_within_a_step_is_named_after_it(shop):
    """Its own name could be made of what the step has read."""
    with (
        spend(dataset="shop", cost=NOISY, step="first") as one,
        spend(dataset="shop", cost=NOISY, step="second") as other,
    ):
        one.release(1.0)
        other.release(1.0)
    named = [entry.body["step"] for entry in journal() if entry.kind == "reserve"]
    assert named == ["first", "first/inner"]
    assert spent() == "0.2"


def test_a_key_within_a_step_is_the_same_release(shop):
    """What was released outside is replayed inside, and the other way round."""
    assert KEYED("a") == 1
    by_block(lambda _: KEYED("a"))
    by_block(lambda _: KEYED("b"))
    assert KEYED("b") == 1
    assert spent() == "0.4"
    shown = {each.key for each in releases(current_project().ledger)}
    assert "key/a" in shown
    assert "key/b" not in shown


def test_a_key_without_fields_is_told(shop):
    """It was written before any data was read."""
    constant = step(release_key="revenue", ignore=("x",), name="constant")
    by_block(lambda _: constant())
    (kept,) = releases(current_project().ledger)
    assert kept.key == "revenue"


def test_a_part_of_the_step_around_it_may_be_read(shop):
    """Its name is public already; another part's would not be."""
    with spend(dataset="parts", cost=NOISY, step="outer", partitions="2026-W01") as one:
        assert PARTED("2026-W01") == 1
        with pytest.raises(ConfigurationError, match="text withheld"):
            PARTED("2026-W02")
        one.release(1.0)
    assert "2026-W02" not in repr(rows(shop))


def test_a_constant_part_may_be_read(shop):
    """It was written where the step was defined."""
    constant = step(dataset="parts", partitions="2026-W07")
    by_block(lambda _: constant())
    assert "2026-W07" in repr(rows(shop))


def test_a_block_may_name_the_flow_of_the_step_around_it(shop):
    """And no other one."""
    with spend(dataset="shop", cost=NOISY, step="outer", flow="report") as charge:
        block(flow="report")
        with pytest.raises(ConfigurationError):
            block(flow="other")
        charge.release(1.0)
    assert spent() == "0.2"


def test_a_step_is_defined_outside_of_bodies(shop):
    """The error says what to do, and shows nothing of what was declared."""

    @guarded(dataset="shop", cost=NOISY)
    def outer():
        with pytest.raises(ConfigurationError) as error:
            guarded(dataset="shop", cost=NOISY, name=read_private())(lambda: 1)
        assert CANARY not in texts(error.value)
        assert "Define it outside" in error.value.message
        return release(1.0)

    outer()


def test_a_substep_does_not_show_a_cost_that_the_body_made(tmp_path, monkeypatch):
    """The cost that pays for a draw may have been computed."""
    make_project(tmp_path, monkeypatch)

    @guarded(dataset="shop", cost=EarlyStopping(NOISY, stops=(1,)))
    def fit():
        for each in iterations():
            each.release(1.0, cost=Laplace(sensitivity=31415926, epsilon="0.1"))

    error = caught(fit)
    assert type(error) is PublicError
    assert "31415926" not in texts(error)


def test_nothing_of_a_body_is_left_behind_it(shop):
    """Errors outside say what is wrong, as ever."""
    for route in ("block-dataset", "block-name-refused", "key-hostile", "partition"):
        assert raised(by_block, ROUTES[route]) is not None
    error = caught(lambda: block(dataset="elsewhere"))
    assert type(error) is UnknownDataset
    assert error.dataset == "elsewhere"
