"""Errors of a body: charged in full, shown by type only."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import pickle
import signal
import sys
import traceback
import weakref
from pathlib import Path
from types import ModuleType

import pytest
from prefect.exceptions import Abort, Pause, TerminationSignal

from dpflow import Laplace, guarded, release, spend
from dpflow.exceptions import (
    ContributionsError,
    DPStepFailed,
    PublicContributionsError,
    PublicError,
    ReleaseError,
    require,
)
from dpflow.guard.project import current_project
from tests.projects import (
    NOISY,
    POLICY,
    TENTH,
    caught,
    chain,
    held,
    kinds,
    ledger_bytes,
    locked_ledger,
    make_project,
    outcome,
    rows,
    spent,
    traceback_of,
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


def fail_with(kind, seen=()):
    """Raise in the way that is worst: in a handler, with a note and a cause."""
    text = read_private()
    try:
        raise CarefullyNamedError(text)
    except CarefullyNamedError as behind:
        error = kind(text)
        with contextlib.suppress(Exception):
            error.add_note(text)
        if kind is CarefullyNamedError:
            seen.append(weakref.ref(error))
        raise error from behind


def group(text):
    """Make a group that no `except Exception` catches."""
    inner = BaseExceptionGroup(text, [ValueError(text), KeyboardInterrupt(text)])
    return BaseExceptionGroup(text, [ValueError(text), inner])


def failing(body, **declared):
    """Return what the outside sees of the error that ends a body."""
    return caught(guarded(**{"dataset": "shop", "cost": TENTH, **declared})(body))


def ended(error):
    """Return what the outside sees of an error that a body raises."""

    def end():
        raise error

    return failing(end)


def test_what_ends_a_program_or_a_test_survives_without_text(shop):
    """Python prints an exit code that is text, and a number could count rows."""
    for code, expected in ((None, None), (0, 0), (3, 1), (True, 1), (CANARY, 1)):
        assert ended(SystemExit(code)).code == expected
    for kind in (pytest.fail.Exception, pytest.skip.Exception):
        error = ended(kind(CANARY))
        assert isinstance(error, kind)
        assert set(vars(error)) == set(vars(kind("")))
        assert not any(vars(error).values())
        assert str(error) == ""


def test_prefects_signals_keep_their_kind_alone(shop):
    """What a body puts into a pause or a termination does not leave it."""
    for error in (Pause(CANARY, state=CANARY), Abort(CANARY), TerminationSignal(41)):
        error.row = CANARY
        error.add_note(CANARY)
        seen = ended(error)
        assert type(seen) is type(error)
        assert seen is not error
        left = {**vars(seen), "args": seen.args}
        assert not {CANARY, 41} & {*left.values(), *seen.args}


#: What a body does to an error of dpflow that it caught.
CHANGES = [
    lambda error: setattr(error, "message", CANARY),
    lambda error: setattr(error, "args", (CANARY,)),
    lambda error: error.details.update(step=CANARY),
    lambda error: vars(error).update(row=CANARY, details={"row": CANARY}),
    lambda error: error.add_note(CANARY),
    lambda error: setattr(error, "__cause__", ValueError(CANARY)),
    lambda error: error.__init__(CANARY, row=CANARY),
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_public_error_leaves_a_body_as_dpflow_made_it(shop, change):
    """Its text is dpflow's, whatever the body did to the error that it caught."""

    def count():
        release(1.0)
        try:
            release(1.0)
        except PublicError as error:
            change(error)
            raise

    error = failing(count, cost=NOISY)
    assert type(error) is PublicError
    assert "charged in full" in error.message
    assert "drew noise twice" in error.message
    assert CANARY not in f"{vars(error)}{error.args}{traceback_of(error)}"


@pytest.mark.parametrize("kind", [PublicError, PublicContributionsError])
def test_a_public_error_of_other_code_is_withheld(shop, kind):
    """Of the body itself, by a call of a function of dpflow's, or by a copy."""
    made = caught(lambda: require(False, CANARY, kind))
    for error in (kind(CANARY), made, pickle.loads(pickle.dumps(kind(CANARY)))):
        assert type(ended(error)) is DPStepFailed
        assert CANARY not in str(ended(error))


def test_a_warning_names_no_class_that_a_body_made(shop, recwarn, caplog):
    """The name of a class can hold private data, and no module has such a class."""

    @guarded(dataset="shop", cost=TENTH, release_key="x")
    def count():
        return type(CANARY, (), {"__module__": CANARY})()

    count()
    texts = [str(warning.message) for warning in recwarn]
    assert any("cannot be stored" in text for text in texts)
    assert CANARY not in f"{texts}{caplog.text}"


async def test_a_cancelled_step_is_charged_and_its_task_is_cancelled(shop):
    """Cancelling in mid-body reaches the task, with nothing of the body behind it."""
    began = asyncio.Event()

    @guarded(dataset="shop", cost=TENTH)
    async def count():
        try:
            raise ValueError(read_private())
        except ValueError:
            began.set()
            await asyncio.sleep(600)

    task = asyncio.create_task(count())
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as error:
        await task
    assert CANARY not in traceback_of(error.value)
    assert outcome()["error_type"] == "CancelledError"
    assert spent() == "0.1"


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


def public_subclass(text):
    """Make an error of a class that derives from the public ones."""
    module = {"__module__": "dpflow.exceptions"}
    return type("PublicError", (PublicError,), module)(text)


def quoting(text):
    """Make an error of dpflow that quotes a number made of private data."""
    return caught(lambda: Laplace(sensitivity=-int(text.split("-")[1]), scale=1))


#: What makes an error of a private text; its type outside, and its name in the journal.
KINDS = [
    (ValueError, DPStepFailed, "ValueError"),
    (CarefullyNamedError, DPStepFailed, "CarefullyNamedError"),
    (StopIteration, DPStepFailed, "StopIteration"),
    (quoting, DPStepFailed, "InvalidCost"),
    (KeyboardInterrupt, KeyboardInterrupt, "KeyboardInterrupt"),
    (SystemExit, SystemExit, "SystemExit"),
    (asyncio.CancelledError, asyncio.CancelledError, "CancelledError"),
    (GeneratorExit, GeneratorExit, "GeneratorExit"),
    (group, KeyboardInterrupt, "BaseExceptionGroup"),
    (slotted, BaseException, "BaseException"),
    (unwritable, DPStepFailed, "Exception"),
    (nameless, DPStepFailed, "Exception"),
    (named, DPStepFailed, "KeyError"),
    (named_ending, KeyboardInterrupt, "KeyboardInterrupt"),
    (public_subclass, DPStepFailed, "PublicError"),
    (ReleaseError, DPStepFailed, "ReleaseError"),
    (ContributionsError, DPStepFailed, "ContributionsError"),
]


@pytest.mark.parametrize("by_spend", [True, False])
def test_an_error_shows_only_its_type(tmp_path, monkeypatch, caplog, by_spend):
    """Message, chain, notes, details, variables and ledger hold no private text."""
    make_project(tmp_path, monkeypatch, POLICY.replace("epsilon: 1}", "epsilon: 9}"))
    (tmp_path / "private.txt").write_text(CANARY, "utf-8")
    seen, errors = [], []

    def call(make):
        def count():
            fail_with(make, seen)

        if by_spend:
            with spend(dataset="shop", cost=TENTH, step="count"):
                count()
        words = {"release_key": "x", "ignore": ("make", "seen")}
        try:
            raise KeyError(CANARY)
        except KeyError:
            # The caller's own error is not taken for one of the body.
            guarded(dataset="shop", cost=TENTH, **words)(count)()

    for make, kind, name in KINDS:
        error = caught(lambda make=make: call(make))
        assert (type(error), outcome()["error_type"]) == (kind, name)
        assert outcome()["outcome"] == "failed"
        assert list(chain(error)) == [error]
        # In a block the variables of Python's own frames hold the original error.
        hidden = caplog.text + "".join(traceback.format_exception(error))
        hidden += "" if by_spend else traceback_of(error)
        assert CANARY.split("-")[1] not in hidden
        if kind is DPStepFailed:
            assert (error.step, error.dataset) == ("count", "shop")
            assert "charged in full" in error.message
        errors.append(error)
    # Once, for a collection takes long: no error holds the original one.
    gc.collect()
    assert by_spend or not any(reference() for reference in seen)
    assert CANARY.encode() not in ledger_bytes(tmp_path)
    assert kinds() == ["reserve", "settle"] * len(KINDS)
    releases = [row for row in rows(tmp_path)["release"] if "free" not in row]
    assert (spent(), releases) == ("1.7", [])


def test_a_scopes_cancellation_is_kept_without_text(shop):
    """A cancel scope looks for its own one, here or behind; nothing else stays."""

    def count(scope):
        try:
            raise asyncio.CancelledError(scope + read_private())
        except asyncio.CancelledError:
            raise asyncio.CancelledError(read_private()) from None

    for scope in ("Cancelled via cancel scope ", "Cancelled by "):
        step = guarded(dataset="shop", cost=TENTH)(count)
        error = caught(lambda scope=scope, step=step: step(scope))
        assert [type(each) for each in chain(error)] == [asyncio.CancelledError]
        assert error.args == ((scope,) if "scope" in scope else ())


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
    assert CANARY not in traceback_of(error)


@pytest.mark.parametrize("module", ["a program without a file", __name__])
def test_the_error_names_no_file_of_compiled_text(shop, monkeypatch, module):
    """Such text names any file; `python -c` and notebooks have no file of their own."""
    monkeypatch.setitem(sys.modules, "nowhere", ModuleType("nowhere"))
    name = module if module in sys.modules else "nowhere"

    def count():
        text = compile("1/0", read_private(), "exec")
        exec(text, {"__name__": name})

    assert CANARY not in failing(count).message


def test_errors_keep_shows_the_original(tmp_path, monkeypatch):
    """Where the policy says that errors are safe, they pass as they are."""
    make_project(tmp_path, monkeypatch, POLICY + "errors: keep\n")
    original = StopIteration(CANARY)

    def body():
        raise original

    def block():
        with spend(dataset="shop", cost=TENTH, step="count"):
            body()

    assert failing(body) is original
    assert caught(block) is original
    assert original.args == (CANARY,)
    assert spent() == "0.2"


def test_one_policy_that_redacts_is_enough(tmp_path, monkeypatch):
    """A step on two datasets shows what both policies allow."""
    other = POLICY.replace("shop", "open") + "errors: keep\n"
    make_project(tmp_path, monkeypatch, POLICY, other)
    (tmp_path / "private.txt").write_text(CANARY, "utf-8")
    error = failing(lambda: fail_with(ValueError), dataset=("open", "shop"), name="n")
    assert type(error) is DPStepFailed
    assert error.dataset == "open, shop"


def test_a_signal_while_the_failure_is_posted_leaks_nothing(shop):
    """Ctrl-C in the settlement of a failed step has nothing private behind it."""

    def count():
        # The settlement blocks on the ledger's lock until the alarm.
        held_lock.enter_context(locked_ledger(shop))
        current_project().ledger.database.lock_seconds = 30
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        raise ValueError(read_private())

    old = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with contextlib.ExitStack() as held_lock:
            error = failing(count)
    finally:
        signal.signal(signal.SIGALRM, old)
    assert type(error) is KeyboardInterrupt
    assert CANARY not in traceback_of(error)
    assert held() == "0.1"
