"""Policies: files, words, folders, and the JSON schema."""

from __future__ import annotations

import json
import pickle
from decimal import Decimal

import pytest
import yaml
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from dpflow.accounting import FILTERS
from dpflow.exceptions import PolicyError, UnknownDataset
from dpflow.ledger.decisions.gates import covers_flow
from dpflow.policy import Policy, load_policies, parse_policy, policy_schema
from tests.policy_examples import POLICIES, SHORT, edited, refused, share
from tests.projects import ROOT
from tests.tables import read_tables


def test_defaults_of_a_short_policy():
    """Omitted fields of a short policy have the defaults of the schema."""
    assert parse_policy(SHORT) == parse_policy(POLICIES["defaults"])
    assert parse_policy(SHORT).odometer is None


def test_policies_from_python_read_floats_as_their_decimals():
    """0.1 means one tenth from Python too."""
    data = yaml.safe_load(SHORT) | {"budget": {"epsilon": 0.1, "delta": 1e-6}}
    policy = Policy.model_validate(data)
    assert Decimal("0.1") == policy.budget.epsilon
    assert Decimal("0.000001") == policy.budget.delta


def test_policies_dump_copy_and_pickle():
    """A policy survives what pydantic and process pools do with it."""
    long = "{theorem: zcdp, conversion: classic}"
    policy = parse_policy(edited("gdp", long))
    assert policy == Policy.model_validate(policy.model_dump())
    assert policy == Policy.model_validate_json(policy.model_dump_json())
    assert policy == pickle.loads(pickle.dumps(policy))


def write(folder, name, dataset):
    """Write a short policy for a dataset."""
    path = folder / name
    path.write_text(edited("cdnow", dataset, SHORT))
    return path


def test_a_folder_is_a_mapping_from_datasets_to_policies(tmp_path):
    """YAML files of a folder are read; all other files are left alone."""
    one = write(tmp_path, "one.yaml", "cdnow")
    two = write(tmp_path, "two.yml", "adult")
    write(tmp_path, ".#one.yaml", "cdnow")
    (tmp_path / "policy.schema.json").write_text("{}")
    (tmp_path / "deeper").mkdir()
    policies = load_policies(tmp_path)
    assert {"cdnow", "adult"} == set(policies)
    assert len(policies) == 2
    assert policies["cdnow"] is policies.policy_for("cdnow")
    assert (one, two) == (policies.source("cdnow"), policies.source("adult"))


def test_two_files_for_one_dataset_are_refused(tmp_path):
    """Neither file wins."""
    first = write(tmp_path, "a.yaml", "cdnow")
    second = write(tmp_path, "b.yaml", "cdnow")
    with pytest.raises(PolicyError) as caught:
        load_policies(tmp_path)
    error = caught.value
    assert (str(second), 1) == (error.file, error.line)
    assert f"{first} already governs the dataset 'cdnow'" in str(error)
    assert error.hint == "Keep one file for each dataset."


def test_unknown_datasets_are_refused_with_the_nearest_name(tmp_path):
    """No step runs without a policy."""
    write(tmp_path, "one.yaml", "cdnow")
    policies = load_policies(tmp_path)
    with pytest.raises(UnknownDataset) as caught:
        policies.policy_for("cdno")
    error = caught.value
    assert (error.dataset, error.known) == ("cdno", ["cdnow"])
    assert str(tmp_path) == error.file
    assert "no policy governs the dataset 'cdno'" in str(error)
    assert "Did you mean 'cdnow'?" in error.hint
    with pytest.raises(UnknownDataset):
        policies.source("cdno")


def test_a_missing_folder_is_refused(tmp_path):
    """No folder, no run."""
    folder = tmp_path / "policies"
    with pytest.raises(PolicyError, match="No such file") as caught:
        load_policies(folder)
    assert (str(folder), None) == (caught.value.file, caught.value.line)
    assert "dpflow init" in caught.value.hint


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
    Draft202012Validator.check_schema(schema)
    whole = yaml.safe_load(SHORT)
    weeks = {"partition": {"by": "week"}, "unit": "customer-week"}
    for name, shown in schema["properties"].items():
        for value in shown["examples"]:
            example = whole | (weeks if name == "window" else {}) | {name: value}
            Draft202012Validator(schema).validate(example)
            Policy.model_validate(example)


def test_the_schema_refuses_what_the_loader_refuses():
    """An editor underlines what would be refused."""
    for old, new in read_tables(__file__)["refused"]:
        data = yaml.safe_load(edited(old, new, share("{halt_at_epsilon: 2}")))
        assert not Draft202012Validator(policy_schema()).is_valid(data)


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
