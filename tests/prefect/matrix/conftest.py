"""One real server for the matrix, and its experiments begun before they are needed."""

from __future__ import annotations

import pytest

from tests.prefect.matrix.laboratory import Laboratory


def pytest_collection_modifyitems(items):
    """Put the tests that wait for other processes behind those that do not."""
    places = [n for n, item in enumerate(items) if item.path.parent.name == "matrix"]
    ours = [items[place] for place in places]
    ours.sort(key=lambda item: "found" in item.fixturenames)
    for place, item in zip(places, ours, strict=True):
        items[place] = item


@pytest.fixture(scope="session")
def _laboratory(request, tmp_path_factory):
    with Laboratory(tmp_path_factory.mktemp("laboratory")) as made:
        modules = dict.fromkeys(item.module for item in request.session.items)
        for module in sorted(
            modules, key=lambda each: not hasattr(each, "BEGIN_FIRST")
        ):
            for experiment in getattr(module, "EXPERIMENTS", ()):
                made.begin(experiment)
        yield made


@pytest.fixture(scope="session", autouse=True)
def _begun(request):
    """Begin the experiments with the first test of the matrix, if any needs them."""
    if any("found" in item.fixturenames for item in request.session.items):
        request.getfixturevalue("_laboratory")


@pytest.fixture
def found(_laboratory):
    """Return a function that waits for an experiment and returns what it found."""
    return _laboratory.result
