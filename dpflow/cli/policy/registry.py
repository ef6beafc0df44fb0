"""`dpflow policy registry`: an entry of the public registry of DP deployments."""

# ruff: noqa: PLC0415 (`dpflow --help` must not wait for the ledger)

from __future__ import annotations

from pathlib import Path
from typing import Any

from dpflow.cli.output import Answer, Verbatim
from dpflow.cli.source import project_ledger
from dpflow.exceptions import ConfigurationError


def registry(dataset: str, *, schema: Path | None = None) -> Answer:
    """Write an entry of the public registry of DP deployments, as YAML.

    Unit, relation, filter, budgets and dates are those of the ledger; free texts come
    from `about:` in the policy that was applied last. The entry names its place in
    the journal, for `dpflow ledger verify --entry`.

    Example: `dpflow policy registry sales > sales.yaml`
    """
    import yaml

    from dpflow.show.registry import registry_entry

    with project_ledger() as (_, ledger):
        entry = registry_entry(ledger, dataset)
    if schema is not None:
        _check(entry, schema)
    text = yaml.safe_dump(entry, sort_keys=False, allow_unicode=True)
    return entry, [Verbatim(text.rstrip())]


def _check(entry: dict[str, Any], path: Path) -> None:
    """Refuse an entry that does not fit a JSON schema."""
    import yaml
    from jsonschema import validate
    from referencing import Registry

    try:
        # Without a registry of its own, it would fetch what a schema refers to.
        schema = yaml.safe_load(path.read_text("utf-8"))
        validate(entry, schema, registry=Registry())
    except Exception as error:
        field, text = getattr(error, "json_path", "$"), getattr(error, "message", error)
        msg = (
            f"the entry does not fit {path} at {field}: {text!s:.300}. Correct "
            "`about:` and run `dpflow policy apply`, or give another schema."
        )
        raise ConfigurationError(msg) from error
