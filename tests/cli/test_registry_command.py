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
from tests.cli.support import CDNOW, Shop, run, run_fine, run_json
from tests.ledger.support import edit

pytestmark = pytest.mark.quick

TEXT = {name: f"text of {name}" for name in sorted(TEXTS)}
TEXT["data_curators"] = "Ann's Shop; Bob & Co."
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


@pytest.mark.promise("edited-registry")
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


@pytest.mark.promise("edited-registry")
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
