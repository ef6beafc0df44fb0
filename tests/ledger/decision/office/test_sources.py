"""One ledger for one data source."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dpflow.exceptions import ConfigurationError
from dpflow.ledger import Ledger, create_ledger
from dpflow.ledger.office import apply_policy
from dpflow.policy import Policy
from tests.ledger.support import Place, granted, kinds, make_policy, url

SOURCE = "warehouse.sales.customers"
POLICY = make_policy(source=SOURCE, budget="{epsilon: 3}")


#: The policy of the other ledger, under another dataset's name.
OTHER = make_policy("b", source=SOURCE, budget="{epsilon: 1}", lifetime="{epsilon: 1}")


@pytest.fixture
def first(tmp_path: Path) -> Ledger:
    """Return the ledger that governs the source, with a charge of 0.1."""
    found = create_ledger(url(tmp_path / "first.db"), witness=str(tmp_path / "w"))
    granted(found, policies=[POLICY])
    return found


@pytest.fixture
def second(tmp_path: Path, first: Ledger) -> Ledger:
    """Return another ledger, whose witness is at the same place."""
    assert first.watch.witness is not None
    return create_ledger(
        url(tmp_path / "second.db"), witness=str(tmp_path / "w"), environment="staging"
    )


@pytest.fixture
def witnessed(path: Place, tmp_path: Path) -> Iterator[Ledger]:
    """Return a ledger with a witness."""
    found = create_ledger(url(path), witness=str(tmp_path / "w"))
    yield found
    found.close()


def apply(ledger: Ledger, policy: Policy) -> None:
    """Apply a policy, as a new term where the dataset was charged."""
    apply_policy(ledger, policy, reason="test", new_term=True)


def test_a_second_ledger_on_a_source_is_refused(first, second):
    """Each time, whatever its dataset is called or applies; the first goes on."""
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=first.id) as error:
            granted(second, policies=[OTHER])
        assert "DPFLOW_LEDGER_URL" in error.value.message
    assert kinds(Path(second.place), "b#1") == []
    apply(second, OTHER)
    with pytest.raises(ConfigurationError, match="governs the data source"):
        granted(second, policies=[OTHER])
    granted(first, policies=[POLICY])


def test_other_sources_and_none_are_free(first, second):
    """The control: only the same source is refused."""
    granted(second, policies=[make_policy("c", source="warehouse.sales.shops")])
    granted(second, policies=[make_policy("d")])
    granted(second, policies=[make_policy("e", source="warehouse.sales.stores")])


def test_without_a_witness_nothing_is_noticed(tmp_path, first):
    """The control: the place of the witness is what tells."""
    ledger = create_ledger(url(tmp_path / "blind.db"), witness="none")
    granted(ledger, policies=[OTHER])


def test_another_name_for_a_charged_source_has_no_budget_of_its_own(witnessed, path):
    """A renamed dataset would start anew; a step, `apply` and a first source say no."""
    granted(witnessed, policies=[POLICY])
    renamed = make_policy("b", source=SOURCE, budget="{epsilon: 3}")
    with pytest.raises(ConfigurationError, match=r"'b' names the source .* of 'a'"):
        granted(witnessed, policies=[renamed])
    with pytest.raises(ConfigurationError, match="of 'a'"):
        apply(witnessed, renamed)
    unnamed = make_policy("b", budget="{epsilon: 3}")
    granted(witnessed, policies=[unnamed])
    with pytest.raises(ConfigurationError, match="of 'a'"):
        apply_policy(witnessed, renamed)
    assert kinds(path, "b#1") == ["open", "reserve"]
    # The same name goes on, and a source that nobody named is free.
    granted(witnessed, policies=[POLICY])
    granted(witnessed, policies=[make_policy("c", source="warehouse.visits")])


def test_a_source_stays_with_the_dataset_that_named_it_first(witnessed, path):
    """Two policies that are applied before any charge would both be charged later."""
    apply(witnessed, POLICY)
    renamed = make_policy("b", source=SOURCE)
    with pytest.raises(ConfigurationError, match="of 'a'"):
        apply(witnessed, renamed)
    apply(witnessed, make_policy("a", budget="{epsilon: 3}"))
    with pytest.raises(ConfigurationError, match="of 'a'"):
        apply(witnessed, renamed)


def test_datasets_of_one_population_may_share_a_source(witnessed, path):
    """The population caps what they lose together."""
    for name in ("a", "b"):
        apply(witnessed, make_policy(name, source=SOURCE, population="people"))
    with pytest.raises(ConfigurationError, match="of 'a'"):
        apply(witnessed, make_policy("c", source=SOURCE))
    with pytest.raises(ConfigurationError, match="of 'a'"):
        apply(witnessed, make_policy("c", source=SOURCE, population="others"))


def test_naming_the_source_of_a_charged_dataset_applies_in_place(first):
    """Taking it off again needs a new term."""
    plain, named = make_policy("p"), make_policy("p", source="p")
    granted(first, policies=[plain])
    assert apply_policy(first, named).action == "tighten"
    granted(first, policies=[named])
    with pytest.raises(Exception, match="new term"):
        apply_policy(first, plain)
