"""`dpflow policy registry` and `dpflow ledger verify --entry`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from dpflow.accounting.costs.notions import PureDP
from dpflow.policy.about import FIELDS, PROVEN, TEXTS
from tests.cli.support import ADULT, CDNOW, Shop, run, run_fine, run_json
from tests.ledger.support import edit

pytestmark = pytest.mark.quick

TEXT = {name: f"text of {name}" for name in sorted(TEXTS)}
TEXT["data_curators"] = "Ann's Shop; Bob & Co."
#: What an entry needs, as the registry says at the commit that dpflow follows.
NEEDED = {
    *("name", "data_curators", "description", "intended_use", "data_product_type"),
    *("data_product_region", "registry_authors"),
}
VERIFY = ("ledger", "verify", "--entry")


def described(policy: str = CDNOW, **texts: str) -> str:
    """Add free texts to a policy."""
    return f"{policy}about: {json.dumps({**TEXT, **texts})}\n"


@pytest.fixture
def sold(shop: Shop) -> Shop:
    """Make a project with a release under a policy that is described."""
    shop.write(described())
    shop.charge()
    return shop


def written(shop: Shop, dataset: str = "cdnow", name: str = "entry.yaml") -> Any:
    """Write the registry entry of a dataset; return it as a program reads YAML."""
    text = run_fine("policy", "registry", dataset)
    (shop.root / name).write_text(text)
    return yaml.safe_load(text)


def differences(shop: Shop, entry: Any) -> list[str]:
    """Return the lines with which an entry is refused."""
    (shop.root / "other.yaml").write_text(yaml.safe_dump(entry))
    return run_json(*VERIFY, "other.yaml", exit_code=1)["differences"]


def failure(*command: str, code: int = 1) -> str:
    """Run a command that fails and prints nothing; return its error."""
    result = run(*command)
    assert (result.exit_code, result.stdout) == (code, "")
    return result.stderr


def leaves(part: Any, *path: str) -> Iterator[tuple[str, ...]]:
    """Yield the place of each field with a value."""
    for name, value in part.items():
        if isinstance(value, dict):
            yield from leaves(value, *path, name)
        else:
            yield (*path, name)


def changed(entry: Any, *path: str, to: Any) -> Any:
    """Return a copy of an entry with another value in one place."""
    part = copy = json.loads(json.dumps(entry))
    for name in path[:-1]:
        part = part[name]
    part[path[-1]] = to
    return copy


def test_an_entry_has_the_fields_of_the_list(sold: Shop) -> None:
    """Each text of the policy and each fact of the ledger stands in its section."""
    entry = written(sold)
    assert run_json("policy", "registry", "cdnow") == entry
    deployment = entry.pop("deployment")
    assert entry == {"url_slug": "cdnow", "status": "Draft", "tier": 2}
    assert {k: (*part,) for k, part in deployment.items()} == FIELDS
    fields = {k: value for part in deployment.values() for k, value in part.items()}
    assert fields["data_curators"] == ["Ann's Shop", "Bob & Co."]
    assert fields["privacy_unit"] == "customer"
    assert fields["privacy_parameters"] == {"epsilon": 3, "delta": 1e-6}
    assert "theorem gdp" in fields["composition"]
    day = run_json("history", "cdnow")["entries"][0]["at"][:10]
    assert fields["publication_date"] == day
    assert f"term 1 on {day}" in fields["release_type_details"]
    head = run_json("ledger", "verify")
    place = f"entry 3, hash {head['heads']['cdnow'][1]} of ledger {head['ledger']}."
    assert place in fields["notes"]


def test_a_true_entry_agrees_also_later(sold: Shop) -> None:
    """Charges, texts, limits and terms that came after its place change nothing."""
    entry = written(sold)
    assert "The registry entry agrees." in run_fine(*VERIFY, "entry.yaml")
    sold.charge()
    lower = described(intended_use="more").replace("epsilon: 3,", "epsilon: 2.5,")
    sold.write(lower)
    assert run("policy", "apply", "cdnow").exit_code == 0
    later = written(sold, name="later.yaml")
    assert later["deployment"]["basic"]["intended_use"] == "more"
    # A tightened term counts as it was opened.
    assert later["deployment"]["privacy_loss"]["privacy_parameters"]["epsilon"] == 3
    sold.write(f"{lower}lifetime: {{epsilon: 9, delta: 1e-5}}\n")
    new = ("policy", "apply", "cdnow", "--new-term", "--reason", "a new year")
    assert run(*new).exit_code == 0
    for name in ("entry.yaml", "later.yaml"):
        assert run_json(*VERIFY, name)["differences"] == []
    sold.charge()
    newest = written(sold, name="newest.yaml")
    numbers = newest["deployment"]["privacy_loss"]["privacy_parameters"]
    assert numbers == {"epsilon": 3.936, "delta": 2e-6}
    assert "The lifetime is (epsilon = 9" in json.dumps(newest)
    # What belongs to the registry itself may be edited; and JSON is an entry, too.
    edited = {**entry, "status": "Approved", "tier": 3, "url_slug": "x"}
    (sold.root / "entry.json").write_text(json.dumps(edited))
    for name in ("entry.json", "newest.yaml"):
        assert run_json(*VERIFY, name)["fine"] is True


def test_each_edited_field_is_named(sold: Shop) -> None:
    """One other value, one field less and one more; none is missed."""
    entry = written(sold)
    places = [p for p in leaves(entry) if len(p) > 1 and p[-1] != "notes"]
    assert len(places) == len(TEXTS) + len(PROVEN)
    for path in places:
        other = 0.5 if path[-1] in ("epsilon", "delta") else "another text"
        (line,) = differences(sold, changed(entry, *path, to=other))
        assert line.startswith(f"{'.'.join(path)}: ledger ")
    del entry["deployment"]["privacy_loss"]["privacy_unit_details"]
    entry["deployment"]["privacy_loss"]["rho"] = 0.1
    less, more = differences(sold, entry)
    assert less.startswith("deployment.privacy_loss.privacy_unit_details: ledger Nei")
    assert more == "deployment.privacy_loss.rho: ledger none, file 0.1"
    problem = f"other.yaml differs from the ledger: {more}"
    assert problem in failure(*VERIFY, "other.yaml")


def test_an_entry_of_another_place_is_refused(sold: Shop) -> None:
    """Another ledger, a number that is later or too late, another hash or dataset."""
    entry = written(sold)
    sold.charge(PureDP(epsilon="0.1"), dataset="adult", flow=None)
    place = ("deployment", "administrative", "notes")
    notes = entry["deployment"]["administrative"]["notes"]
    digest, ledger = re.findall(r"[0-9a-f]{32,64}", notes)
    for old, new in (
        (ledger, "f" * 32),
        ("entry 3", "entry 4"),
        ("entry 3", "entry 999"),
        (digest, "0" * 64),
        ("compares", "proves"),
    ):
        (line,) = differences(sold, changed(entry, *place, to=notes.replace(old, new)))
        assert line.startswith("deployment.administrative.notes: ledger Dataset cdnow,")
    for old, new, reason in (
        ("of ledger", "of", "names no entry of a journal"),
        ("entry 3", "entry 1", "no release from dataset 'cdnow' up to entry 1"),
        ("cdnow", "nothing", "no release from dataset 'nothing'"),
        ("cdnow", "adult", "the applied policy of dataset 'adult' lacks texts"),
        ("Dataset", "Data", "names no entry of a journal"),
    ):
        text = changed(entry, *place, to=notes.replace(old, new))
        (sold.root / "other.yaml").write_text(yaml.safe_dump(text))
        assert reason in failure(*VERIFY, "other.yaml")
    (sold.root / "other.yaml").write_text("deployment: 3\n")
    assert "names no entry" in failure(*VERIFY, "other.yaml")


def test_an_entry_of_a_bad_ledger_is_not_confirmed(sold: Shop) -> None:
    """The journal is verified first; and an export has no state to compare with."""
    written(sold)
    assert run(*VERIFY, "none.yaml").exit_code == 2
    error = failure(*VERIFY, "entry.yaml", "journal.jsonl", code=2)
    assert "leave FILE out" in error
    later = "UPDATE journal SET at = '' WHERE number = 2"
    edit(sold.root / ".dpflow" / "ledger.db", later)
    result = run(*VERIFY, "entry.yaml")
    assert (result.exit_code, "registry entry" in result.stdout) == (1, False)


def test_no_entry_promises_too_much(sold: Shop) -> None:
    """Without a release, a text or a sum of budgets there is no entry."""
    sold.write(described(ADULT), "adult.yaml")
    assert "no release from" in failure("policy", "registry", "adult")
    sold.charge(PureDP(epsilon="0.1"), "failed", dataset="adult", flow=None)
    assert run("policy", "registry", "adult").exit_code == 1
    sold.charge(PureDP(epsilon="0.1"), dataset="adult", flow=None)
    entry = written(sold, "adult")["deployment"]
    assert entry["dp_variant"]["variant_name"] == "Pure DP"
    assert entry["privacy_loss"]["privacy_parameters"] == {"epsilon": 1, "delta": 0}
    sold.write(ADULT, "adult.yaml")
    assert run("policy", "apply", "adult").exit_code == 0
    error = failure("policy", "registry", "adult")
    assert f"lacks texts of an entry: {', '.join(sorted(NEEDED))}." in error
    late = ("--reason", "late", "--cost", "PureDP(epsilon=9)")
    assert run("ledger", "charge", "cdnow", *late).exit_code == 0
    error = failure("policy", "registry", "cdnow")
    assert "no sum of budgets bounds the loss of dataset 'cdnow'" in error
    assert run_json(*VERIFY, "entry.yaml")["fine"] is True  # as it was at its place


def test_numbers_of_an_entry_round_up(shop: Shop) -> None:
    """A float has 15 sure digits; shorter decimals stay as they are."""
    exact = "1.00000000000000000000001"
    policy = ADULT.replace("epsilon: 1", f"epsilon: {exact}, delta: 1e-30")
    shop.write(described(policy), "adult.yaml")
    shop.charge(PureDP(epsilon="0.1"), dataset="adult", flow=None)
    numbers = written(shop, "adult")["deployment"]["privacy_loss"]["privacy_parameters"]
    assert numbers == {"epsilon": 1.00000000000001, "delta": 1e-30}
    assert run_json(*VERIFY, "entry.yaml")["fine"] is True


def test_terms_of_windows_share_one_budget(shop: Shop) -> None:
    """Their budgets do not add up: the first and largest one covers all terms."""
    policy = ADULT.replace("person", "person-week").replace(
        "replace-one", "add-or-remove"
    )
    policy += "partition: {by: week}\nwindow: {length: 2}\n"
    for epsilon in ("1", "0.5"):
        file = policy.replace("epsilon: 1", f"epsilon: {epsilon}")
        shop.write(described(file), "adult.yaml")
        run_fine("policy", "apply", "adult", "--new-term", "--reason", "less")
        step = {"dataset": "adult", "flow": None, "partitions": ("2026-W01",)}
        shop.charge(PureDP(epsilon="0.1"), **step)
    loss = written(shop, "adult")["deployment"]["privacy_loss"]
    assert loss["privacy_parameters"] == {"epsilon": 1, "delta": 0}
    assert "(epsilon = 1, delta = 0)-differ" in loss["privacy_parameters_details"]
    assert "right at most 73.2 times in 100" in loss["privacy_parameters_details"]


SCHEMA = """type: object
required: [deployment]
properties: {deployment: {properties: {basic: {$ref: "#/$defs/basic"}}}}
$defs: {basic: {properties: {data_product_type: {enum: [Dataset]}}}}
"""


def test_an_entry_is_checked_by_a_given_schema(
    sold: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry that does not fit is not written; no reference is fetched."""
    path = sold.root / "schema.yaml"
    registry = ("policy", "registry", "cdnow", "--schema", "schema.yaml")
    path.write_text(SCHEMA)
    problem = "$.deployment.basic.data_product_type: 'text of data_pro"
    assert problem in failure(*registry)
    sold.write(described(data_product_type="Dataset"))
    assert run("policy", "apply", "cdnow").exit_code == 0
    assert "data_product_type: Dataset" in run_fine(*registry)
    fetched: list[Any] = []
    monkeypatch.setattr("urllib.request.urlopen", fetched.append)
    for text in ("type: 3", "[", "3", "$ref: http://127.0.0.1:9/x"):
        path.write_text(text)
        assert "does not fit schema.yaml at $" in failure(*registry), text
    assert fetched == []
