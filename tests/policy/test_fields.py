"""Fields and theorems that are refused, with the file, the line and a hint."""

from __future__ import annotations

import pytest
import yaml
from pydantic import ValidationError

from dpflow.accounting import FILTERS
from dpflow.ledger.decisions.gates import covers_flow
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
    (edited("unit: customer\n", ""), 2, "unit: this field is missing", "customer"),
    (epsilon("true"), 5, "finite number, got True", "1e-6"),
    (epsilon("1_0"), 5, "finite number, got '1_0'", "1e-6"),
    (epsilon('"٣"'), 5, "finite number, got '٣'", "1e-6"),
    (epsilon("0"), 5, "budget.epsilon must lie in", "zeros"),
    (epsilon("-1"), 5, "got '-1'", "without the sign"),
    (edited("3, delta: 1e-6}", "3, delta: 1}"), 5, "budget.delta must be", "below"),
    (edited("cdnow", "a b"), 2, "dataset 'a b' is not", "Use 1 to 200 letters"),
    (edited("cdnow", "öffnungen"), 2, "dataset 'öffnungen'", "200 letters a to z or"),
    (epsilon("1,5"), 5, "the key '5' is not", "Numbers have a point, not a comma. Is"),
    (edited("cdnow", "12"), 2, "dataset: should be text, got 12", "`dataset: cdnow`"),
    (edited("customer", r'"a\nb"'), 3, "unit must be printable", "on one line"),
    (edited("add-or-remove", "swap"), 4, "'add-or-remove' or 'replace-one'", "for ex"),
    (edited("[0.5, 0.8, 0.95]", "[0.5,\n 1]"), 12, "alerts[1] must lie", "zeros"),
    (edited("[0.5, 0.8, 0.95]", "0.5"), 11, "alerts: should be a list", "[0.5, 0.8"),
    (EXAMPLE + "data_version: 2\n", 14, "data_version: should be text", '"1"'),
    (edited("weekly-report:", '"a&b":'), 9, "flow 'a&b' is not", "none of %&<>"),
    (edited("weekly-report:", '" a":'), 9, "flow ' a' is not a usable", "at the ends"),
    (edited("weekly-report:", '"Ta\u0308glich":'), 9, "is not a usable name", "NFC"),
    (edited("gdp", "gpd"), 6, "there is no filter 'gpd'", "'gdp'? Known: "),
    (edited("gdp", "{orders: [2]}"), 6, "filter.theorem: this field is", "Add it"),
    (edited("gdp", "{theorem: auto, members: []}"), 6, "'members'", "pins them"),
    (edited("gdp", "{theorem: basic, x: 1}"), 6, "no option 'x'", "There are none"),
    (
        edited("gdp", "{theorem: zcdp,\n convrsion: a}"),
        7,
        "'convrsion'",
        "Did you mean",
    ),
    (edited("gdp", "{theorem: zcdp,\n conversion: a}"), 7, "tight, classic", "options"),
    (odometer("rdq"), 7, "there is no odometer 'rdq'", "Did you mean 'rdp'?"),
    (odometer("{theorem: rdp,\n order: 0.5}"), 8, "odometer.order must", "zeros"),
    (odometer("{theorem: rdp, halt_at_epsilon: 3}"), 7, "no option 'halt", "flows: {"),
    (EXAMPLE + "about: {actor: x}\n", 14, "about has no text 'actor'", "'actors'?"),
    (EXAMPLE + "about: {notes: x}\n", 14, "about has no text 'notes'", "Known: "),
    (
        EXAMPLE + 'about: {name: "a\\nb"}\n',
        14,
        "about must be print",
        "2000 characters",
    ),
]


def test_fields_that_cannot_be_used_are_refused():
    """Every wrong field is refused with its line and what to write instead."""
    for text, line, message, hint in REFUSED:
        error = refused(text)
        assert error.line == line, error
        assert message in str(error)
        assert hint in error.hint


def test_all_problems_are_listed_in_the_order_of_the_file():
    """Someone who repairs a file sees the whole list."""
    text = edited("customer", "12", edited("redact", "hide"))
    lines = str(refused(text)).splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("cdnow.yaml:3: unit: ")
    assert lines[1].startswith("cdnow.yaml:12: errors: ")


def test_flow_names_are_those_of_prefect():
    """Any printable name that Prefect takes can stand in a policy, and a / too."""
    for name in ("weekly report @ 1/2", "日報", "ETL (a), v2 #1 😀"):
        policy = parse_policy(edited("weekly-report:", f'"{name}":'))
        assert covers_flow(policy.to_pinned(), name)


def test_options_that_yaml_cannot_hold_are_refused_from_python():
    """An option is data, never an object."""
    data = yaml.safe_load(SHORT) | {"filter": {"theorem": "gdp", "x": object()}}
    with pytest.raises(ValidationError, match="the option x cannot be <object"):
        Policy.model_validate(data)


def test_a_theorem_that_cannot_be_loaded_is_refused(monkeypatch):
    """A theorem whose package is missing says so."""
    monkeypatch.setitem(FILTERS, "absent", "dpflow_absent:AbsentFilter")
    error = refused(edited("gdp", "absent", SHORT))
    assert error.line == 5
    assert "'absent' cannot be loaded: No module named 'dpflow_absent'" in str(error)
    assert error.hint == "Install what it needs."
