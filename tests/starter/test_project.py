"""What a new project begins with is sound, and nothing that was there is lost."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpflow import Gaussian, guarded
from dpflow.exceptions import ConfigurationError
from dpflow.guard.project import forget_projects
from dpflow.starter.project import default_delta, filter_for, make_project
from dpflow.starter.texts import ProjectOptions

pytestmark = pytest.mark.quick

COUNT = Gaussian(sensitivity=1, noise_multiplier=20)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make a folder without ledger and policies the working directory."""
    for name in ("LEDGER_URL", "POLICIES", "ENVIRONMENT"):
        monkeypatch.delenv(f"DPFLOW_{name}", raising=False)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    forget_projects()


def test_the_default_delta_is_far_below_one_in_all_people() -> None:
    """At most a tenth of it."""
    assert default_delta(None) == default_delta(23570) == "1e-6"
    for people in (10, 23570, 10**9):
        assert float(default_delta(people)) <= 0.1 / people


def test_three_answers_choose_a_filter() -> None:
    """The reason comes with it."""
    for noise, use, of, delta, theorem in [
        ("gdp", "reports", "rows", "1e-6", "gdp"),
        ("laplace", "reports", "people", "1e-6", "gdp"),
        ("mixed", "reports", "rows", "1e-6", "auto"),
        ("gdp", "training", "rows", "1e-6", "rdp"),
        ("laplace", "reports", "rows", "0", "basic"),
    ]:
        chosen, why = filter_for(noise=noise, use=use, of=of, delta=delta)
        assert chosen == theorem
        assert ("`individual`" in why) is (of == "people")


def test_a_second_dataset_warns_of_an_existing_flow(folder: Path) -> None:
    """The kept file uses the first dataset; a flow of its own is another file."""
    make_project(ProjectOptions(dataset="one"))
    warnings = make_project(ProjectOptions(dataset="two")).warnings
    assert any("flows/daily_report.py was there before" in text for text in warnings)
    more = make_project(ProjectOptions(dataset="three", flow="third")).warnings
    assert not any("was there" in text for text in more)
    # Again for the first one, nothing is new and nothing is wrong.
    again = make_project(ProjectOptions(dataset="one")).warnings
    assert not any("was there" in text for text in again)


def charged(dataset: str) -> str:
    """Charge a step of the flow that the policy names; return how it was refused."""

    @guarded(dataset=dataset, cost=COUNT, flow="daily-report", noise="own")
    def count() -> int:
        return 1

    forget_projects()
    try:
        count()
    except ConfigurationError as error:
        return error.message
    finally:
        forget_projects()
    return ""


def test_a_ledger_made_anew_does_not_forget(folder: Path) -> None:
    """The policy names its source, and the witness knows which ledger governs that."""
    make_project(ProjectOptions())
    assert charged("visits") == ""
    shutil.rmtree(folder / ".dpflow")
    (folder / "policies" / "ledger.lock").unlink()
    make_project(ProjectOptions())
    assert "governs the data source" in charged("visits")
