"""The JSON schema of policies, for editors."""

from __future__ import annotations

from typing import Any

from dpflow.policy.model import Policy


def policy_schema() -> dict[str, Any]:
    """Return the JSON schema of policies, for editors.

    It offers the theorems that are registered, and so changes with them.
    """
    schema = Policy.model_json_schema(mode="validation")
    _drop_null(schema)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "Policy of a dataset (dpflow)",
        "description": "What governs one dataset: its budget, theorems and flows.",
    }


def _drop_null(schema: dict[str, Any]) -> None:
    """Drop null from a schema: in YAML, an optional field has a value or is absent."""
    if "default" in schema and schema["default"] is None:
        del schema["default"]
    if "anyOf" in schema:
        schema["anyOf"] = [form for form in schema["anyOf"] if form != {"type": "null"}]
    for value in schema.values():
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, dict):
                _drop_null(part)
