"""`dpflow policy registry` and `dpflow ledger verify --entry`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from dpflow.policy.about import PROVEN, TEXTS
from tests.cli.support import CDNOW, Shop, run, run_fine, run_json

pytestmark = pytest.mark.quick


def leaves(part: Any, *path: str) -> Iterator[tuple[str, ...]]:
    """Yield the place of each field with a value."""
    for name, value in part.items():
        if isinstance(value, dict):
            yield from leaves(value, *path, name)
        else:
            yield (*path, name)


@pytest.mark.promise("edited-registry")
def test_each_edited_field_is_named(shop: Shop) -> None:
    """One other value, one field less and one more; none is missed."""
    texts = {name: f"text of {name}" for name in sorted(TEXTS)}
    shop.write(f"{CDNOW}about: {json.dumps(texts)}\n")
    shop.charge()
    text = run_fine("policy", "registry", "cdnow")
    verify = ("ledger", "verify", "--entry", "other.yaml")

    def refused(entry: Any) -> list[str]:
        (shop.root / "other.yaml").write_text(yaml.safe_dump(entry))
        return run_json(*verify, exit_code=1)["differences"]

    places = [
        p for p in leaves(yaml.safe_load(text)) if len(p) > 1 and p[-1] != "notes"
    ]
    assert len(places) == len(TEXTS) + len(PROVEN)
    for path in places:
        part = entry = yaml.safe_load(text)
        for name in path[:-1]:
            part = part[name]
        part[path[-1]] = 0.5 if path[-1] in ("epsilon", "delta") else "another text"
        (line,) = refused(entry)
        assert line.startswith(f"{'.'.join(path)}: ledger ")
    entry = yaml.safe_load(text)
    del entry["deployment"]["privacy_loss"]["privacy_unit_details"]
    entry["deployment"]["privacy_loss"]["rho"] = 0.1
    less, more = refused(entry)
    assert less.startswith("deployment.privacy_loss.privacy_unit_details: ledger Nei")
    assert more == "deployment.privacy_loss.rho: ledger none, file 0.1"
    result = run(*verify)
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"other.yaml differs from the ledger: {more}" in result.stderr
