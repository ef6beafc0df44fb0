"""Fields and theorems that are refused, with the file, the line and a hint."""

from __future__ import annotations

import pytest
import yaml
from pydantic import ValidationError

from dpflow.ledger.decision.gates import covers_flow
from dpflow.policy import Policy, parse_policy
from tests.policy_examples import EXAMPLE, SHORT, edited, refused, share

pytestmark = pytest.mark.quick


def epsilon(text):
    """Return the example with another epsilon."""
    return edited("epsilon: 3,", f"epsilon: {text},")


def odometer(text):
    """Return the example with another odometer."""
    return edited("{theorem: rdp, delta: 1e-6}", text)


REFUSED = [
    (edited("errors:", "erors:"), 12, "erors: this field is unknown", "'errors'?"),
    (epsilon("3, epsilom: 3"), 5, "budget.epsilom", "'epsilon'"),
    (share("{halt: 3}"), 9, "flows.weekly-report.halt", "'halt_at_epsilon'?"),
    (edited("schedule:", "schedul:"), 13, "on_exhausted.schedul", "'schedule'?"),
    (edited("unit: customer\n", ""), 2, "unit: this field is missing", "customer"),
    (edited("epsilon: 3, ", ""), 5, "budget.epsilon: this field", "`epsilon: 3`"),
    (epsilon("true"), 5, "finite number, got True", "1e-6"),
    (epsilon("[3]"), 5, "finite number, got [3]", "1e-6"),
    (epsilon('" 3"'), 5, "finite number, got ' 3'", "1e-6"),
    (epsilon("1_0"), 5, "finite number, got '1_0'", "1e-6"),
    (epsilon('"٣"'), 5, "finite number, got '٣'", "1e-6"),
    (epsilon("'nan'"), 5, "finite number, got 'nan'", "1e-6"),
    (epsilon("0"), 5, "budget.epsilon must lie in", "zeros"),
    (epsilon("-1"), 5, "got '-1'", "without the sign"),
    (epsilon("1,5"), 5, "'5' is not text", "not a comma"),
    (edited("3, delta: 1e-6}", "3, delta: 1}"), 5, "budget.delta must be", "below"),
    (edited("cdnow", "a b"), 2, "dataset 'a b' is not", "Use 1 to 200 letters"),
    (edited("cdnow", "a" * 201), 2, "is not a usable name", "Use 1 to 200 letters"),
    (edited("cdnow", "12"), 2, "dataset: should be text, got 12", "`dataset: cdnow`"),
    (edited("customer", r'"a\nb"'), 3, "unit must be printable", "on one line"),
    (edited("add-or-remove", "swap"), 4, "'add-or-remove' or 'replace-one'", "for ex"),
    (edited("[0.5, 0.8, 0.95]", "[0.5,\n 1]"), 12, "alerts[1] must lie", "zeros"),
    (edited("[0.5, 0.8, 0.95]", "0.5"), 11, "alerts: should be a list", "[0.5, 0.8"),
    (edited("{epsilon: 3, delta: 1e-6}", "3"), 5, "budget: should be a mapping", "3"),
    (EXAMPLE + "data_version: 2\n", 14, "data_version: should be text", '"1"'),
    (share("3"), 9, "flows.weekly-report: should be a mapping", "Correct the value"),
    (edited("weekly-report:", '"a&b":'), 9, "flow 'a&b' is not", "none of %&<>"),
    (edited("weekly-report:", '" a":'), 9, "flow ' a' is not a usable", "at the ends"),
    (edited("weekly-report:", '"Ta\u0308glich":'), 9, "is not a usable name", "NFC"),
    (edited("gdp", "gpd"), 6, "there is no filter 'gpd'", "'gdp'? Known: "),
    (edited("gdp", "{orders: [2]}"), 6, "filter.theorem: this field is", "Add it"),
    (edited("gdp", "3"), 6, "filter must be a theorem, got 3", "{theorem: NAME"),
    (edited("gdp", "{theorem: auto, members: []}"), 6, "'members'", "pins them"),
    (edited("gdp", "{theorem: basic, x: 1}"), 6, "no option 'x'", "There are none"),
    (
        edited("gdp", "{theorem: zcdp,\n convrsion: a}"),
        7,
        "'convrsion'",
        "Did you mean",
    ),
    (edited("gdp", "{theorem: zcdp,\n conversion: a}"), 7, "tight, classic", "options"),
    (edited("gdp", "{theorem: basic, delta: 0}"), 6, "no option 'delta'", "`budget`"),
    (odometer("rdq"), 7, "there is no odometer 'rdq'", "Did you mean 'rdp'?"),
    (odometer("{theorem: rdp,\n order: 0.5}"), 8, "odometer.order must", "zeros"),
    (odometer("{theorem: rdp, delta: 0}"), 7, "odometer.delta must", "below"),
    (odometer("{theorem: rdp, halt_at_epsilon: 3}"), 7, "no option 'halt", "flows: {"),
]


@pytest.mark.parametrize(("text", "line", "message", "hint"), REFUSED)
def test_fields_that_cannot_be_used_are_refused(text, line, message, hint):
    """Every wrong field is refused with its line and what to write instead."""
    error = refused(text)
    assert line == error.line
    assert message in str(error)
    assert hint in error.hint


def test_all_problems_are_told_at_once_in_the_order_of_the_file():
    """Someone who repairs a file sees the whole list."""
    text = edited("customer", "12", edited("redact", "hide"))
    lines = str(refused(text)).splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("cdnow.yaml:3: unit: ")
    assert lines[1].startswith("cdnow.yaml:12: errors: ")


@pytest.mark.parametrize("name", ["weekly report @ 1/2", "日報", "ETL (a), v2 #1 😀"])
def test_flow_names_are_those_of_prefect(name):
    """Any printable name that Prefect takes can stand in a policy, and a / too."""
    policy = parse_policy(edited("weekly-report:", f'"{name}":'))
    assert covers_flow(policy.pinned(), name)


def test_options_that_yaml_cannot_hold_are_refused_from_python():
    """An option is data, never an object."""
    data = yaml.safe_load(SHORT) | {"filter": {"theorem": "gdp", "x": object()}}
    with pytest.raises(ValidationError, match="the option x cannot be <object"):
        Policy.model_validate(data)
