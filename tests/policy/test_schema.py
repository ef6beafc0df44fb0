"""The JSON schema of policies is current, valid and explains itself."""

from __future__ import annotations

import json

import jsonschema
import pytest
import yaml

from dpflow.policy import Policy, policy_schema
from tests.policy_examples import SHORT, edited, share
from tests.projects import ROOT

SCHEMA_FILE = ROOT / "policies" / "policy.schema.json"


def test_the_schema_file_is_current():
    """What editors use is what the code says."""
    expected = json.dumps(policy_schema(), indent=2) + "\n"
    assert expected == SCHEMA_FILE.read_text(), (
        "write policies/policy.schema.json anew: dpflow policy schema"
    )


def test_every_field_of_the_schema_explains_itself():
    """Editors show a title, a description and an example for each field."""
    schema = policy_schema()
    parts = [schema, *schema["$defs"].values()]
    parts += [form for part in parts for form in part.get("anyOf", [])]
    fields = [item for part in parts for item in part.get("properties", {}).items()]
    assert len(fields) > 15
    for name, shown in fields:
        kind = shown.get("$ref", "").rpartition("/")[2]
        known = {**schema["$defs"].get(kind, {}), **shown}
        missing = {"title", "description", "examples"} - known.keys()
        assert set() == missing, name


def test_every_example_of_the_schema_is_valid():
    """What an editor offers is accepted by the schema and by the loader."""
    schema = policy_schema()
    whole = yaml.safe_load(SHORT)
    for name, shown in schema["properties"].items():
        for value in shown["examples"]:
            jsonschema.validate(whole | {name: value}, schema)
            Policy.model_validate(whole | {name: value})


def test_the_schema_refuses_what_the_loader_refuses():
    """An editor underlines what would be refused."""
    for old, new in (
        ("unit: customer\n", ""),
        ("errors:", "erors:"),
        ("gdp", "gpd"),
        ("epsilon: 3", "epsilon: true"),
        ("epsilon: 3", "epsilon: -1"),
        ("cdnow", "a b"),
        ("weekly-report", "' a'"),
    ):
        data = yaml.safe_load(edited(old, new, share("{halt_at_epsilon: 2}")))
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(data, policy_schema())
