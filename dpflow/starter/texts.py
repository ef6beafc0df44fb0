"""Files of a new project: a policy, its schema and a flow."""

from __future__ import annotations

import json
import keyword
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from string import Template

from dpflow.exceptions import require
from dpflow.policy import policy_schema
from dpflow.policy.strict_yaml import NUMBER


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectOptions:
    """Options of `dpflow init`; an empty one takes the default."""

    dataset: str = ""
    unit: str = ""
    people: int | None = None
    epsilon: str = ""
    delta: str = ""
    theorem: str = ""
    flow: str = ""
    terms: int | None = None


def identifier(flow: str) -> str:
    """Return a flow's name as a name that Python can import."""
    name = re.sub(r"\W+", "_", flow, flags=re.ASCII).strip("_").lower()
    fits = name.isidentifier() and not keyword.iskeyword(name)
    require(fits, f"the flow's name {flow[:40]!r} must begin with a letter")
    msg = f"the flow's name {flow[:40]!r} has a '/', which Prefect does not allow"
    require("/" not in flow, msg)
    return name


def policy_text(
    options: ProjectOptions, lifetime: Mapping[str, str] | None = None
) -> str:
    """Return the first policy; its lifetime is the budget unless another is given."""
    people = options.people
    total = lifetime or {"epsilon": options.epsilon, "delta": options.delta}
    return fill(
        "policy.yaml",
        dataset=_scalar(options.dataset),
        source=_scalar(f"{options.dataset}-{secrets.token_hex(4)}"),
        unit=_scalar(options.unit),
        people="" if people is None else f"check: {{people: {people}}}\n",
        epsilon=_number(options.epsilon),
        delta=_number(options.delta),
        **{f"lifetime_{name}": _number(text) for name, text in total.items()},
        theorem=_scalar(options.theorem),
        comment=_COMMENTS.get(options.theorem, ""),
        flow=_scalar(options.flow),
    )


def flow_text(options: ProjectOptions, cost: str, policy: str) -> str:
    """Return the first flow, with a step of this cost under the policy's file."""
    return fill(
        "flow.py",
        policy=policy,
        dataset=json.dumps(options.dataset),
        flow=json.dumps(options.flow, ensure_ascii=False),
        unit=" ".join(options.unit.split()),
        cost=cost,
        kind=cost.partition("(")[0],
        name=identifier(options.flow),
    )


def schema_text() -> str:
    """Return the JSON schema of policies, for editors."""
    return json.dumps(policy_schema(), indent=2) + "\n"


def fill(template: str, **words: str) -> str:
    """Return a template with its words; their text is not substituted again."""
    file = files("dpflow.starter").joinpath("templates", f"{template}.txt")
    return Template(file.read_text("utf-8")).substitute(words)


def _scalar(text: str) -> str:
    """Write a text for YAML; a text with another meaning in YAML is quoted."""
    plain = re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", text)
    special = text.lower() in ("null", "true", "false", "yes", "no", "on", "off")
    return text if plain and not special else json.dumps(text, ensure_ascii=False)


def _number(text: str) -> str:
    """Write a number for YAML; another text is quoted, and refused by the reader."""
    return text if NUMBER.fullmatch(text) else json.dumps(text)


_COMMENTS = {"gdp": "  # Gaussian, Laplace and pure steps; `auto` for mixtures"}
