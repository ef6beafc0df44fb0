"""Weak policies and better ones; where the engines find policy and budget."""

from __future__ import annotations

import pytest

from dpflow import Composed, Gaussian, PoissonSampledGaussian, PureDP, Repeated
from dpflow.forecast import check_policies, forecast
from dpflow.forecast.advice import advice, suggestion, workload_of_sequence
from dpflow.forecast.counting import WorkloadStep, runs_of
from dpflow.policy import parse_policy
from tests.cli.support import ADULT, Shop

pytestmark = pytest.mark.quick

GOOD = """\
dataset: d
unit: person
relation: add-or-remove
budget: {epsilon: 3, delta: 1e-6}
filter: gdp
"""
GAUSSIAN = Gaussian(sensitivity=1, sigma=20)


def codes(text: str, **known) -> list[str]:
    """Return what is weak, by name."""
    return [each.code for each in advice(parse_policy(text), **known)]


def test_people_are_the_policys_unless_they_are_given():
    """A check may name their number."""
    large = GOOD.replace("1e-6", "1e-3")
    assert codes(large, people=1001) == ["large-delta"]
    assert codes(large.replace("unit", "check: {people: 1001}\nunit"), people=900) == []


def test_gaussians_under_basic_are_warned_of():
    """With the theorems that do have a price."""
    basic = GOOD.replace("gdp", "basic")
    (item,) = advice(parse_policy(basic), workload=(WorkloadStep(GAUSSIAN),))
    assert item.code == "no-price"
    assert "gdp" in item.hint
    assert "basic" in item.text
    assert codes(basic, workload=(WorkloadStep(PureDP(epsilon="0.1")),)) == []


def test_a_cost_of_another_relation_is_warned_of():
    """A ledger refuses it."""
    cost = PoissonSampledGaussian(sampling_rate="0.01", noise_multiplier=2)
    text = GOOD.replace("gdp", "rdp")
    assert codes(text, workload=(WorkloadStep(cost),)) == []
    text = text.replace("add-or-remove", "replace-one")
    assert codes(text, workload=(WorkloadStep(cost),)) == ["no-price"]


def test_a_step_that_never_fits_is_warned_of():
    """The gate that refuses it is named."""
    text = GOOD + "flows: {f: {epsilon: 0.1, delta: 1e-7}}\nother_flows: allow\n"
    items = advice(parse_policy(text), workload=(WorkloadStep(GAUSSIAN),))
    assert [each.code for each in items] == ["too-large"]
    assert "flow f" in items[0].text


def test_the_theorem_that_goes_furthest_is_suggested():
    """Its count is the filter's own, and no other filter's is larger."""
    for name, cost, best in (
        ("rdp", GAUSSIAN, "gdp"),
        ("gdp", GAUSSIAN, "gdp"),
        ("basic", GAUSSIAN, "gdp"),
        ("gdp", PureDP(epsilon="1"), "basic"),
    ):
        policy = parse_policy(GOOD.replace("gdp", name))
        suggested = suggestion(policy, (WorkloadStep(cost),))
        assert suggested.best.theorem == best
        rule = parse_policy(GOOD.replace("gdp", best)).dataset_filter()
        assert runs_of(rule, (WorkloadStep(cost),)) == suggested.best.rounds
        assert best in suggested.text or "No adaptive filter" in suggested.text


@pytest.mark.parametrize("filter_name", ["auto", "rdp"])
def test_the_best_whole_order_is_named_for_sampled_steps(filter_name):
    """It admits 879 of the steps; by its default order `rdp` admits 28 of them."""
    text = GOOD.replace("epsilon: 3, delta: 1e-6", "epsilon: 2, delta: 1e-5")
    sampled = PoissonSampledGaussian(sampling_rate="0.01", noise_multiplier=1)
    policy = parse_policy(text.replace("gdp", filter_name))
    for cost in (Repeated(sampled, 100), Composed(Repeated(sampled, 100))):
        suggested = suggestion(policy, (WorkloadStep(cost),))
        assert (suggested.best.order, suggested.best.rounds) == (8, 8)
        assert "`filter: {theorem: rdp, order: 8}` goes furthest" in suggested.text
        assert "Fix the order before the first charge." in suggested.text


def test_a_sequence_declares_its_workload():
    """And gets no other theorem suggested, for it was chosen with its steps."""
    steps = "[{cost: {mechanism: PureDP, epsilon: 0.1}, times: 5}]"
    text = GOOD.replace("gdp", f"{{theorem: sequence, steps: {steps}}}")
    policy = parse_policy(text)
    assert workload_of_sequence(policy) == (WorkloadStep(PureDP(epsilon="0.1"), 5),)
    assert suggestion(policy, workload_of_sequence(policy)) is None
    assert workload_of_sequence(parse_policy(GOOD)) == ()
    assert suggestion(parse_policy(GOOD), ()) is None


TENTH = "PureDP(epsilon=0.1)"


def edited(shop: Shop) -> Shop:
    """Charge a dataset of epsilon 1, and write 3 into its file."""
    shop.charge(PureDP(epsilon="0.1"), dataset="adult", flow=None)
    shop.write(ADULT.replace("epsilon: 1", "epsilon: 3"), "adult.yaml")
    return shop


def test_the_ledgers_copy_governs_every_answer(shop: Shop) -> None:
    """Not the file: steps are refused by what the ledger has applied."""
    edited(shop)
    assert forecast("adult", costs=[TENTH]).outlook.runs_left == 9
    checks = {each.path.stem: each for each in check_policies().files}
    assert checks["adult"].refused
    assert not checks["cdnow"].refused


def test_the_file_speaks_for_what_the_ledger_does_not_know(empty: Shop) -> None:
    """Before there is a ledger, or a charge."""
    empty.write(ADULT, "adult.yaml")
    assert forecast(costs=[TENTH]).outlook.runs_left == 10
    record = check_policies()
    assert record.fine
    assert not record.compared


def test_a_notebook_is_warned_of_a_ledger_that_forgot_charges(shop: Shop) -> None:
    """As the commands warn: what is left would be said too large."""
    place = shop.root / ".dpflow" / "ledger.db"
    before = place.read_bytes()
    edited(shop)
    for end in ("-wal", "-shm"):
        place.with_name(f"{place.name}{end}").unlink(missing_ok=True)
    place.write_bytes(before)
    with pytest.warns(UserWarning, match="reconcile"):
        forecast("adult", costs=[TENTH])
