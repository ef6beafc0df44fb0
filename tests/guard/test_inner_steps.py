"""Steps inside the body of another step are refused before they are charged."""

from __future__ import annotations

import asyncio
import contextvars
from concurrent.futures import ThreadPoolExecutor

import pytest

from dpflow import EarlyStopping, Laplace, dp_task, guarded, iterations, release, spend
from dpflow.exceptions import PublicError
from tests.projects import NOISY, POLICY, caught, kinds, make_project, spent

CANARY = "canary-3141592653"


@pytest.fixture(params=["", "errors: keep\n"], ids=["redact", "keep"])
def shop(request, tmp_path, monkeypatch):
    """Return a project; texts of errors are withheld or kept."""
    make_project(tmp_path, monkeypatch, POLICY + request.param)


@guarded(dataset="shop", cost=NOISY, name="inner")
def inner():
    """Release a number in a step of its own."""
    return release(1.0)


@dp_task(dataset="shop", cost=NOISY, name="inner-task")
def inner_task():
    """Release a number in a task of its own."""
    return release(1.0)


def block():
    """Release a number in a block of its own, named by private data."""
    with spend(dataset="shop", cost=NOISY, step=CANARY) as charge:
        return charge.release(1.0)


def in_a_thread():
    """Call the inner step in a thread that copies the context."""
    context = contextvars.copy_context()
    with ThreadPoolExecutor() as pool:
        pool.submit(context.run, inner).result()


def in_to_thread():
    """Call the inner step by `asyncio.to_thread`."""
    asyncio.run(asyncio.to_thread(inner))


INNER = [inner, inner_task, inner_task.submit, block, in_a_thread, in_to_thread]


@pytest.mark.promise("inner-step")
@pytest.mark.parametrize("call", INNER)
def test_an_inner_step_is_refused_and_not_charged(shop, call):
    """The error names the outer step; a body that catches it goes on."""

    @guarded(dataset="shop", cost=NOISY, name="outer")
    def outer():
        error = caught(call)
        assert type(error) is PublicError
        assert "the body of DP step 'outer'" in error.message
        assert CANARY not in error.message
        return release(1.0)

    outer()
    assert spent() == "0.1"
    assert kinds().count("reserve") == 1


@pytest.mark.promise("inner-step")
def test_a_body_that_lets_the_error_escape_fails_and_stays_charged(shop):
    """The reason is shown, for it holds the name of the outer step only."""
    outer = guarded(dataset="shop", cost=NOISY, name="outer")(lambda: block() and 1)
    error = caught(outer)
    assert isinstance(error, PublicError)
    assert "one after another" in error.message
    assert "The step was charged in full" in error.message
    assert CANARY not in str(error)
    assert spent() == "0.1"


def test_steps_one_after_another_run(shop):
    """The control: outside of bodies each step is granted, and nothing is left over."""
    inner()
    block()
    assert spent() == "0.2"


def test_a_step_is_defined_outside_of_bodies(shop):
    """The error says what to do, and shows nothing of what was declared."""

    @guarded(dataset="shop", cost=NOISY)
    def outer():
        with pytest.raises(PublicError, match=r"@guarded.*top of a module") as error:
            guarded(dataset="shop", cost=NOISY, name=CANARY)(lambda: 1)
        assert CANARY not in str(error.value)
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
    assert "31415926" not in str(error)
