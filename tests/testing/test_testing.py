"""The fixture for tests of pipelines: its noise, its refusals, its fence."""

from __future__ import annotations

import json
import os
import statistics
import tomllib
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import pytest

from dpflow import BudgetExhausted, Gaussian, Laplace, guarded, release, spend
from dpflow.exceptions import ConfigurationError
from dpflow.guard.project import current_project
from dpflow.ledger import create_ledger, open_ledger
from dpflow.ledger.tables.sqlite import forget_memory
from dpflow.mechanisms.gradients import poisson_sample
from dpflow.noise.sources import (
    TEST_ENVIRONMENT,
    TEST_NOISE,
    Seeds,
    drawing,
    random_bytes,
    replace_noise,
    restore_noise,
    stream_for,
)
from dpflow.testing import dpflow_ledger, ledger_for_tests  # noqa: F401 (a fixture)
from tests.projects import NOISY, ROOT, journal, make_project, outcome, rows, run_python

pytest_plugins = ["pytester"]

VISITS = """\
dataset: visits
unit: visitor
relation: add-or-remove
budget: {epsilon: 1, delta: 1e-6}
filter: gdp
"""
GAUSSIAN = Gaussian(sensitivity=1, sigma=20)


@guarded(dataset="visits", cost=GAUSSIAN, release_key="visitors/{day}")
def visitors(day):
    """Release a count."""
    return release(1000)


@guarded(dataset="visits", cost=GAUSSIAN)
def average():
    """Release a float."""
    return release(0.5)


@pytest.fixture
def ledger(dpflow_ledger):  # noqa: F811
    """Return a test's ledger with one policy."""
    dpflow_ledger.use(VISITS)
    return dpflow_ledger


# Noise


def test_noise_is_the_same_in_every_run():
    """Each execution of a step draws its own; a new ledger begins again."""
    drawn = []
    for _ in range(2):
        with ledger_for_tests() as ledger:
            ledger.use(VISITS)
            drawn.append([average(), average(), visitors("a"), visitors("b")])
    assert drawn[0] == drawn[1]
    assert len({*drawn[0]}) == 4


@pytest.mark.parametrize(
    ("cost", "scale"), [(GAUSSIAN, 20), (Laplace(sensitivity=1, scale=10), 14.14)]
)
def test_seeded_noise_has_the_declared_scale(ledger, cost, scale):
    """A test may try its tolerances: 4000 numbers have the mechanism's deviation."""
    ledger.use(VISITS.replace("gdp", "basic").replace("1,", "100,", 1))
    if isinstance(cost, Gaussian):
        ledger.use(VISITS)
    with spend(dataset="visits", cost=cost, step="many") as charge:
        noisy = charge.release([0.0] * 4000, length=4000)
    assert abs(statistics.fmean(noisy)) < 0.1 * scale
    assert abs(statistics.stdev(noisy) - scale) < 0.1 * scale


def test_random_bytes_are_seeded_in_a_step_of_the_test_only(ledger):
    """Sampling uses the same seam."""
    place = (ledger.ledger.id, TEST_ENVIRONMENT, "sampled", "")

    def drawn():
        ledger.seed(5)
        with drawing(stream_for(*place)):
            return random_bytes(8), poisson_sample(Fraction(1, 2), 64).tolist()

    first = drawn()
    assert drawn() == first
    assert random_bytes(8) != random_bytes(8)
    assert poisson_sample(Fraction(1, 2), 64).tolist() != first[1]


# It cannot be turned on anywhere else


def test_a_real_ledger_refuses_replaced_noise(tmp_path, monkeypatch):
    """Its own identity says what it was made for, and nothing changes that."""
    make_project(tmp_path, monkeypatch)
    ledger = current_project().ledger
    with pytest.raises(ConfigurationError, match="cannot be replaced"):
        replace_noise(ledger.id, ledger.environment, Seeds(silent=True))
    guarded(dataset="shop", cost=NOISY)(lambda: release(1.0))()
    assert outcome()["noise"] == "opendp"


def test_a_lie_about_the_environment_changes_nothing(tmp_path, monkeypatch):
    """The guard asks the ledger again, whatever was registered for its id."""
    make_project(tmp_path, monkeypatch)
    ledger = current_project().ledger
    replace_noise(ledger.id, TEST_ENVIRONMENT, Seeds(silent=True))
    try:
        for environment in (None, "production", "dpflow-test "):
            assert stream_for(ledger.id, environment, "step", "") is None
        drawn = guarded(dataset="shop", cost=NOISY)(lambda: release(1.0))()
        assert outcome()["noise"] == "opendp"
        assert drawn != 1.0
    finally:
        restore_noise(ledger.id)


def test_threads_of_a_pipeline_charge_the_ledger_of_the_test(ledger):
    """A task runner has its own, and so has a flow with a time limit."""
    with ThreadPoolExecutor(2) as threads:
        assert len({*threads.map(visitors, "abcd")}) == 4
    assert len(ledger.charges()) == 4


# Refusals


def test_an_exhausted_dataset_refuses_and_still_replays(ledger):
    """A step that was never granted is exhausted too; a replay is free."""
    known = visitors("a")
    ledger.exhaust("visits")
    with pytest.raises(BudgetExhausted, match="Remaining: mu_squared 0 of"):
        average()
    assert visitors("a") == known
    ledger.refill("visits")
    average()
    assert ledger.refusals() == ["average"]
    assert [charge.step for charge in ledger.charges()] == ["visitors", "average"]


def test_the_next_charge_is_refused_once(ledger):
    """A replay does not use the order up, a refusal does."""
    known = visitors("a")
    ledger.refuse_next()
    assert visitors("a") == known
    with pytest.raises(BudgetExhausted):
        visitors("b")
    visitors("b")


# What was charged and released


def test_charges_and_releases_have_all_facts(ledger):
    """Steps, costs, ends and values, oldest first."""
    count = visitors("a")

    @guarded(dataset="visits", cost=GAUSSIAN, flow="report")
    def broken():
        raise ValueError

    with pytest.raises(Exception, match="broken"):
        broken()
    first, second = ledger.charges("visits")
    granted = (first.step, first.cost, first.release_key)
    assert granted == ("visitors", GAUSSIAN, "visitors/a")
    ended = (first.state, first.outcome, first.noise)
    assert ended == ("settled", "completed", TEST_NOISE)
    assert (second.flow, second.outcome) == ("report", "failed")
    (entry,) = ledger.releases("visits")
    assert (entry.step, entry.key, entry.value) == ("visitors", "visitors/a", count)
    assert ledger.releases("other") == []


# The fence


def test_the_projects_ledger_is_left_alone(tmp_path, monkeypatch):
    """Steps in the test charge the test's ledger; no row of the real one changes."""
    make_project(tmp_path, monkeypatch)
    step = guarded(dataset="shop", cost=NOISY, name="count")(lambda: release(1.0))
    step()
    real = current_project().ledger.id
    before = rows(tmp_path)
    with ledger_for_tests() as ledger:
        step()
        step()
        assert ledger.ledger.id != real
    assert rows(tmp_path) == before
    assert current_project().ledger.id == real
    assert len(journal()) == 3


def test_a_real_url_that_the_test_sets_is_refused(ledger, monkeypatch, tmp_path):
    """The guard meets an error; the password is not in it."""
    monkeypatch.setenv("DPFLOW_LEDGER_URL", "postgresql://me:secret-word@real/db")
    with pytest.raises(ConfigurationError, match="keeps every ledger") as caught:
        average()
    assert "secret-word" not in str(caught.value)


def test_no_other_ledger_is_opened_or_made(ledger, tmp_path, monkeypatch):
    """In any storage."""
    monkeypatch.chdir(tmp_path)
    for url in ("sqlite:///real.db", "postgresql://real/db", "memory://real"):
        for act in (open_ledger, create_ledger):
            with pytest.raises(ConfigurationError, match="keeps every ledger"):
                act(url, witness="none")
    assert [*tmp_path.glob("real*")] == []


def test_without_the_fixture_the_same_calls_work(tmp_path):
    """The tests above can fail."""
    with ledger_for_tests():
        pass
    try:
        for url in (f"sqlite:///{tmp_path / 'real.db'}", "memory://real"):
            create_ledger(url, witness="none").close()
            open_ledger(url, witness="none").close()
    finally:
        forget_memory("memory://real")


# As pytest loads it


LIGHT = """
import json, os, sys
sys.modules["pytest"] = None
import dpflow.testing
modules = sorted(name for name in sys.modules if name.startswith("dpflow"))
from dpflow import PureDP, guarded
before = dict(os.environ)
with dpflow.testing.ledger_for_tests() as ledger:
    ledger.use(sys.argv[1])
    step = guarded(dataset="visits", cost=PureDP(epsilon="0.5"))(lambda: 3)
    answers = [step(), len(ledger.charges("visits"))]
print(json.dumps([modules, *answers, os.environ == before]))
"""


def test_the_plugin_is_registered_light_and_of_use_without_pytest():
    """Every run of pytest loads it; the context manager works without pytest."""
    data = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    # Under the module's own name, so that `-p dpflow.testing` is the same plugin.
    plugins = data["project"]["entry-points"]["pytest11"]
    assert plugins == {"dpflow.testing": "dpflow.testing"}
    modules, *answers = run_python(LIGHT, VISITS.replace("gdp", "basic"))
    assert modules == ["dpflow", "dpflow.testing"]
    assert answers == [3, 1, True]


CHILD = """
import json, os
from dpflow import Gaussian, guarded, release
from dpflow.exceptions import ConfigurationError
from dpflow.ledger import open_ledger
os.environ.update(json.loads(os.sys.argv[1]))
count = guarded(dataset="visits", cost=Gaussian(sensitivity=1, sigma=20), name="child")
count(lambda: release(7.0))()
try:
    open_ledger("sqlite:///real.db", witness="none")
except ConfigurationError as error:
    print(json.dumps("keeps every ledger" in error.message))
"""


def test_child_processes_stay_inside_the_fence(dpflow_ledger):  # noqa: F811
    """They charge the test's ledger, with OpenDP's noise."""
    dpflow_ledger.use(VISITS)
    inherited = {k: v for k, v in os.environ.items() if k.startswith("DPFLOW_")}
    assert run_python(CHILD, json.dumps(inherited)) is True
    (charge,) = dpflow_ledger.charges()
    assert (charge.step, charge.noise) == ("child", "opendp")


ORDER = """
import os

def test_sets_a_variable(monkeypatch, dpflow_ledger):
    monkeypatch.setenv("DPFLOW_LEDGER_URL", "sqlite:///other.db")

def test_has_no_trace_of_it():
    assert not [n for n in os.environ if n.startswith("DPFLOW_") and n != "DPFLOW_X"]
"""


def test_a_test_leaves_no_trace_in_the_environment(pytester, monkeypatch):
    """Also where the test patched what the fixture had set."""
    for name in [name for name in os.environ if name.startswith("DPFLOW_")]:
        monkeypatch.delenv(name)
    pytester.makepyfile(ORDER)
    plugins = ("-p", "no:asyncio", "-p", "no:cacheprovider", "-p", "dpflow.testing")
    pytester.runpytest_inprocess(*plugins).assert_outcomes(passed=2)
