"""Errors of a body: charged in full, shown by type only."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import signal
import traceback
import types
import weakref
from pathlib import Path

import anyio
import pytest

from dpflow import Laplace, guarded, spend
from dpflow.exceptions import (
    ContributionsError,
    DPStepFailed,
    PublicError,
    ReleaseError,
)
from dpflow.guard.project import current_project
from tests.projects import (
    POLICY,
    TENTH,
    caught,
    chain,
    held,
    journal,
    kinds,
    ledger_bytes,
    locked_ledger,
    make_project,
    outcome,
    rows,
    spent,
    told,
)

pytestmark = pytest.mark.quick

CANARY = "canary-" + "3141592653"


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """Return a project whose private data is a canary in a file."""
    make_project(tmp_path, monkeypatch)
    (tmp_path / "private.txt").write_text(CANARY, "utf-8")
    return tmp_path


def read_private():
    """Read the private data, as a body does."""
    return Path("private.txt").read_text("utf-8")


class CarefullyNamedError(Exception):
    """An error of a body, whose text is private."""


def fail_with(kind):
    """Raise in the way that is worst: in a handler, with a note and a cause."""
    text = read_private()
    try:
        raise CarefullyNamedError(text)
    except CarefullyNamedError as behind:
        error = kind(text)
        error.add_note(text)
        raise error from behind


@pytest.mark.parametrize("kind", [ValueError, CarefullyNamedError, StopIteration])
def test_an_exception_shows_only_its_type(shop, caplog, kind):
    """Message, chain, notes, details and local variables hold no private text."""
    step = guarded(dataset="shop", cost=TENTH)(fail_with)
    error = caught(lambda: step(kind))
    assert type(error) is DPStepFailed
    assert error.error_type == kind.__name__
    assert (error.step, error.dataset) == ("fail_with", "shop")
    assert "charged in full" in error.message
    assert "errors: keep" in error.message
    shown = traceback.TracebackException.from_exception(error, capture_locals=True)
    assert CANARY not in "".join(shown.format())
    assert CANARY not in told(error) + caplog.text
    assert list(chain(error)) == [error]
    assert spent() == "0.1"
    assert outcome()["error_type"] == kind.__name__
    assert CANARY.encode() not in ledger_bytes(shop)


def group(text):
    """Make a group that no `except Exception` catches."""
    inner = BaseExceptionGroup(text, [ValueError(text), KeyboardInterrupt(text)])
    return BaseExceptionGroup(text, [ValueError(text), inner])


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        (KeyboardInterrupt, KeyboardInterrupt),
        (SystemExit, SystemExit),
        (asyncio.CancelledError, asyncio.CancelledError),
        (GeneratorExit, GeneratorExit),
        (group, KeyboardInterrupt),
    ],
)
def test_what_is_no_exception_keeps_its_type_and_loses_its_text(
    shop, caplog, kind, shown
):
    """Terminations reach whom they are for; the step is charged in full."""
    step = guarded(dataset="shop", cost=TENTH, release_key="x", ignore=("kind",))(
        fail_with
    )
    error = caught(lambda: step(kind))
    assert type(error) is shown
    assert CANARY not in "".join(traceback.format_exception(error))
    assert CANARY not in told(error) + caplog.text
    assert CANARY.encode() not in ledger_bytes(shop)
    assert kinds() == ["reserve", "settle"]
    assert outcome()["outcome"] == "failed"
    assert spent() == "0.1"
    assert rows(shop)["release"] == []


@pytest.mark.parametrize(("code", "left"), [(None, None), (3, 3), (CANARY, 1)])
def test_the_exit_code_of_a_program_survives_unless_it_is_text(shop, code, left):
    """Python prints an exit code that is text, and then exits with 1."""

    def leave():
        raise SystemExit(code)

    error = caught(guarded(dataset="shop", cost=TENTH)(leave))
    assert error.code == left


@pytest.mark.parametrize("kind", [pytest.fail.Exception, pytest.skip.Exception])
def test_a_test_that_ends_within_a_body_is_still_told_by_pytest(shop, kind):
    """Pytest reads what its own errors carry, and broke off where that was gone."""

    def end():
        raise kind(CANARY)

    error = caught(guarded(dataset="shop", cost=TENTH)(end))
    assert isinstance(error, kind)
    assert set(vars(error)) == set(vars(kind("")))
    assert not any(vars(error).values())
    assert str(error) == ""


async def test_a_cancelled_step_is_charged_and_its_task_is_cancelled(shop):
    """Cancelling in mid-body reaches the task, with nothing of the body behind it."""

    @guarded(dataset="shop", cost=TENTH)
    async def count():
        try:
            raise ValueError(read_private())
        except ValueError:
            await asyncio.sleep(30)

    with pytest.raises(TimeoutError) as error:
        async with asyncio.timeout(0.3):
            await count()
    assert CANARY not in told(error.value)
    assert outcome()["error_type"] == "CancelledError"
    assert spent() == "0.1"


async def test_a_cancel_scope_still_recognises_its_own_cancellation(shop):
    """Prefect's timeouts are anyio scopes, which look at text and chain."""

    @guarded(dataset="shop", cost=TENTH)
    async def count():
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            raise asyncio.CancelledError(read_private()) from None

    with anyio.move_on_after(0.2) as scope:
        await count()
    assert scope.cancelled_caught
    assert spent() == "0.1"


@pytest.mark.parametrize("of_a_scope", [True, False])
def test_a_scopes_cancellation_is_kept_without_text(shop, of_a_scope):
    """A cancel scope looks for its own one, here or behind; nothing else stays."""
    scope = "Cancelled via cancel scope " if of_a_scope else "Cancelled by "

    @guarded(dataset="shop", cost=TENTH)
    def count():
        try:
            try:
                raise ValueError(read_private())
            except ValueError:
                raise asyncio.CancelledError(scope + read_private()) from None
        except asyncio.CancelledError:
            raise asyncio.CancelledError(read_private()) from None

    error = caught(count)
    assert [type(each) for each in chain(error)] == [asyncio.CancelledError]
    assert error.args == ((scope,) if of_a_scope else ())


def slotted(text):
    """Make an error that is no `Exception`, whose own attribute is out of reach."""

    class Slotted(BaseException):
        __slots__ = ("text",)
        args = property(lambda _: (text,))

        def __str__(self):
            return text

    error = Slotted(text)
    error.text = text
    return error


def unwritable(text):
    """Make an error that raises another one where it is changed."""

    class Unwritable(Exception):
        def __setattr__(self, *_):
            raise ValueError(text)

        __class__ = __traceback__ = __context__ = property(__setattr__)

    return Unwritable(text)


def nameless(text):
    """Make an error whose class raises where its name is read, and equals all."""

    class Meta(type):
        def __getattribute__(cls, _):
            raise ValueError(text)

        def __eq__(cls, _):
            return True

        __hash__ = type.__hash__

    return Meta("Nameless", (Exception,), {})(text)


def named(text):
    """Make an error whose class is named after private data."""
    return type(text, (KeyError,), {"__module__": __name__})(text)


def named_ending(text):
    """Make the same of what is no `Exception`."""
    return type(text, (KeyboardInterrupt,), {"__module__": "builtins"})(text)


def of_a_scope(text):
    """Make what looks like a cancellation by a scope of anyio."""
    return asyncio.CancelledError("Cancelled via cancel scope " + text)


def public_subclass(text):
    """Make an error of a class that derives from the public ones."""
    return type("PublicError", (PublicError,), {"__module__": "dpflow.exceptions"})(
        text
    )


def endless(text):
    """Make a group that holds nothing to raise."""

    class Endless(BaseExceptionGroup):
        exceptions = property(lambda _: 1 / 0)

    return Endless(text, [KeyboardInterrupt(text)])


HOSTILE = {
    slotted: (BaseException, "BaseException"),
    unwritable: (DPStepFailed, "Exception"),
    nameless: (DPStepFailed, "Exception"),
    named: (DPStepFailed, "KeyError"),
    named_ending: (KeyboardInterrupt, "KeyboardInterrupt"),
    of_a_scope: (asyncio.CancelledError, "CancelledError"),
    public_subclass: (DPStepFailed, "PublicError"),
    endless: (KeyboardInterrupt, "BaseExceptionGroup"),
    ReleaseError: (DPStepFailed, "ReleaseError"),
    ContributionsError: (DPStepFailed, "ContributionsError"),
}


@pytest.mark.parametrize("make", HOSTILE)
def test_a_hostile_class_gets_nothing_out(shop, caplog, make):
    """Neither in what the caller gets nor in the ledger, whatever the class does."""

    @guarded(dataset="shop", cost=TENTH)
    def count():
        raise make(read_private())

    error = caught(count)
    kind, name = HOSTILE[make]
    assert (type(error), outcome()["error_type"]) == (kind, name)
    assert list(chain(error)) == [error]
    assert CANARY not in told(error) + caplog.text + type(error).__name__
    assert CANARY.encode() not in ledger_bytes(shop)
    assert spent() == "0.1"


@pytest.mark.parametrize("own", [True, False])
def test_the_error_names_the_line_of_the_users_code(shop, own):
    """The deepest one of the user's file, also below another library; never a text."""

    @guarded(dataset="shop", cost=TENTH)
    def count():
        if own:
            return {}[read_private()]
        return json.loads(read_private())

    line = count.__wrapped__.__code__.co_firstlineno + (3 if own else 4)
    error = caught(count)
    assert f"{Path(__file__).name}:{line} (text withheld" in error.message
    assert "dpflow_ledger" in error.message
    assert CANARY not in told(error)


def test_code_that_was_made_of_text_has_no_line(shop):
    """Its file could be named after private data."""

    @guarded(dataset="shop", cost=TENTH)
    def count():
        exec(compile("1 / 0", read_private(), "exec"), {"__name__": __name__})

    error = caught(count)
    assert f"{Path(__file__).name}:" in error.message
    assert CANARY not in told(error)


class Halt:
    """Suspends a coroutine in a way that no event loop resumes."""

    def __await__(self):
        yield self


@types.coroutine
def closed_at_halt(coroutine):
    """Drive a coroutine, and close it where it halts."""
    while not isinstance(waited := coroutine.send(None), Halt):
        yield waited
    coroutine.close()


async def test_a_coroutine_that_is_closed_in_mid_step_is_charged(shop):
    """Closing, as the interpreter does at its end, raises GeneratorExit in the body."""

    @guarded(dataset="shop", cost=TENTH)
    async def count():
        await Halt()

    await closed_at_halt(count())
    assert outcome()["error_type"] == "GeneratorExit"
    assert spent() == "0.1"


def test_the_original_error_is_not_kept_alive(shop):
    """Nothing that the caller holds leads to the error of the body."""
    seen = []

    @guarded(dataset="shop", cost=TENTH)
    def count():
        error = CarefullyNamedError(read_private())
        seen.append(weakref.ref(error))
        raise error

    error = caught(count)
    gc.collect()
    assert seen[0]() is None
    assert error.error_type == "CarefullyNamedError"


def test_dpflow_errors_that_quote_a_number_are_redacted_too(shop):
    """A cost made in the body may quote a number made of private data."""

    @guarded(dataset="shop", cost=TENTH)
    def count():
        return Laplace(sensitivity=-int(read_private().split("-")[1]), scale=1)

    error = caught(count)
    assert type(error) is DPStepFailed
    assert error.error_type == "InvalidCost"
    assert CANARY.split("-")[1] not in told(error)


def test_an_error_in_the_callers_handler_stays_out(shop):
    """The caller's own error is not taken for one of the body."""

    def call():
        try:
            raise KeyError(CANARY)
        except KeyError:
            guarded(dataset="shop", cost=TENTH)(fail_with)(ValueError)

    error = caught(call)
    assert list(chain(error)) == [error]


def test_a_block_that_raises_shows_only_the_type(shop):
    """The same holds for `spend`, whose block Python runs in the caller."""

    def block():
        with spend(dataset="shop", cost=TENTH, step="count"):
            fail_with(ValueError)

    error = caught(block)
    assert type(error) is DPStepFailed
    assert list(chain(error)) == [error]
    assert CANARY not in "".join(traceback.format_exception(error))
    assert spent() == "0.1"


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit, group])
def test_a_block_that_is_ended_from_outside_is_charged(shop, kind):
    """Terminations leave the block with their type and without text."""

    def block():
        with spend(dataset="shop", cost=TENTH, step="count"):
            fail_with(kind)

    error = caught(block)
    assert not isinstance(error, Exception)
    assert CANARY not in "".join(traceback.format_exception(error))
    assert outcome()["outcome"] == "failed"
    assert spent() == "0.1"


@pytest.mark.parametrize("kind", [ValueError, StopIteration, KeyboardInterrupt])
def test_errors_keep_shows_the_original(tmp_path, monkeypatch, kind):
    """Where the policy says that errors are safe, they pass as they are."""
    make_project(tmp_path, monkeypatch, POLICY + "errors: keep\n")
    original = kind(CANARY)

    def body():
        raise original

    def block():
        with spend(dataset="shop", cost=TENTH, step="count"):
            body()

    assert caught(guarded(dataset="shop", cost=TENTH)(body)) is original
    assert caught(block) is original
    assert original.args == (CANARY,)
    assert spent() == "0.2"
    assert [entry.body["error_type"] for entry in journal()[2::2]] == (
        [kind.__name__] * 2
    )


def test_one_policy_that_redacts_is_enough(tmp_path, monkeypatch):
    """A step on two datasets shows what both policies allow."""
    other = POLICY.replace("shop", "open") + "errors: keep\n"
    make_project(tmp_path, monkeypatch, POLICY, other)
    (tmp_path / "private.txt").write_text(CANARY, "utf-8")
    both = guarded(dataset=("open", "shop"), cost=TENTH)(fail_with)
    error = caught(lambda: both(ValueError))
    assert type(error) is DPStepFailed
    assert error.dataset == "open, shop"


def test_a_signal_while_the_failure_is_posted_leaks_nothing(shop):
    """Ctrl-C in the settlement of a failed step has nothing private behind it."""

    @guarded(dataset="shop", cost=TENTH)
    def count():
        # The settlement blocks on the ledger's lock until the alarm.
        held_lock.enter_context(locked_ledger(shop))
        current_project().ledger.storage._lock_seconds = 30
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        raise ValueError(read_private())

    old = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with contextlib.ExitStack() as held_lock:
            error = caught(count)
    finally:
        signal.signal(signal.SIGALRM, old)
    assert type(error) is KeyboardInterrupt
    assert CANARY not in told(error)
    assert held() == "0.1"


def test_a_failed_settlement_of_a_failed_body_leaks_nothing(shop):
    """The ledger's error and the body's do not become one chain."""

    @guarded(dataset="shop", cost=TENTH)
    def count():
        held_lock.enter_context(locked_ledger(shop))
        raise ValueError(read_private())

    with (
        contextlib.ExitStack() as held_lock,
        pytest.warns(RuntimeWarning, match="unsettled") as warned,
    ):
        error = caught(count)
    assert type(error) is DPStepFailed
    assert CANARY not in told(error) + "".join(str(each.message) for each in warned)
    assert held() == "0.1"


def test_a_warning_that_is_an_error_leaks_nothing(shop, monkeypatch):
    """Under `-W error` the warning takes the place of the body's error."""

    @guarded(dataset="shop", cost=TENTH)
    def count():
        held_lock.enter_context(locked_ledger(shop))
        raise ValueError(read_private())

    with contextlib.ExitStack() as held_lock:
        monkeypatch.setattr("warnings.filters", [("error", None, Warning, None, 0)])
        error = caught(count)
    assert type(error) is RuntimeWarning
    assert CANARY not in told(error)
    assert held() == "0.1"
