"""Made-up people in the format of the Adult files, for tests of the flows on them."""

from __future__ import annotations

import hashlib
import itertools
from pathlib import Path

import pytest

from flows import adult

PEOPLE = 48_842
_JOBS = ("Private", "State-gov", "?", "Unheard-of")
_ROW = (
    "{age}, {job}, 77516, Bachelors, {school}, {married}, Sales, Husband, White, "
    "{sex}, {gain}, 0, 40, {country}, {income}"
)


def row(number: int) -> str:
    """Return one person; who went to school for long earns more."""
    school = number % 16 + 1
    return _ROW.format(
        age=17 + number % 74,
        job=_JOBS[number % 4],
        school=school,
        married="Divorced" if number % 3 else "Married-civ-spouse",
        sex="Male" if number % 2 else "Female",
        gain=number % 7 * 1000,
        country="United-States" if number % 5 else "?",
        income=">50K" if school > 11 else "<=50K",
    )


def write(folder: Path, monkeypatch: pytest.MonkeyPatch, people: int = PEOPLE) -> None:
    """Write the two files, let `flows.adult` find them and take them for the real."""
    kinds = [row(number) for number in range(16 * 74 * 15)]
    lines = list(itertools.islice(itertools.cycle(kinds), people))
    first = people * 2 // 3
    texts = {
        "adult.data": "\n".join([*lines[:first], ""]),
        "adult.test": "\n".join(
            ["|1x3 Cross validator", *(f"{line}." for line in lines[first:]), ""]
        ),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, "ascii")
        digest = hashlib.sha256(text.encode("ascii")).hexdigest()
        monkeypatch.setitem(adult.FILES, name, digest)
    monkeypatch.setenv("DPFLOW_DATA", str(folder))
    adult._table.cache_clear()
