"""An entry of the public registry of DP deployments, and its proof by the ledger.

The entry covers all releases up to one entry of the journal, which it names, so that
the same registry entry can be made again from there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from dpflow.exceptions import ConfigurationError
from dpflow.ledger import Ledger
from dpflow.ledger.views.reading import ENDLESS
from dpflow.ledger.views.terms import promise
from dpflow.policy.about import FIELDS
from dpflow.policy.lifetime import total_of
from dpflow.policy.pinned import difference_lines, value_text
from dpflow.rounding import number_from_text, short_up
from dpflow.show.guarantees import (
    adds_up,
    odds_in_words,
    term_guarantee,
    terms_in_words,
)

_PLACE = re.compile(r"Dataset (\S+), entry (\d{1,15}), hash \w+ of ledger")
_REQUIRED = {*FIELDS["basic"], "registry_authors"}
_LISTS = {"data_curators", "registry_authors"}


def registry_entry(
    ledger: Ledger, dataset: str, number: int = ENDLESS
) -> dict[str, Any]:
    """Return the registry entry of a dataset.

    Args:
        ledger: The ledger.
        dataset: The dataset or population.
        number: Entry of the journal that proves it. Default: the newest.

    Raises:
        ConfigurationError: If there is no release, a text is missing, or no sum of
            budgets bounds the loss.
    """
    entry, terms, views, released = promise(ledger, dataset, number)
    body, words = terms[-1].fields, terms_in_words(views)
    copy, odds = body["declared"], odds_in_words(body["pinned"], views)
    if not adds_up(copy, views):
        msg = (
            f"no sum of budgets bounds the loss of dataset {dataset!r}. {words} An "
            "entry would promise too much."
        )
        raise ConfigurationError(msg)
    charged = [view.counted for view in views if view.charged]
    # All terms share the sums of windows, which the first may have filled.
    counted = charged[:1] if views[-1].window else charged
    total = total_of(counted, copy.get("lifetime"))
    budget = copy["budget"] if views[-1].divided else total
    # A float has 15 sure digits.
    numbers = {n: short_up(number_from_text(text), 15) for n, text in budget.items()}
    opened = (f"term {t.number} on {t.fields['at'][:10]}" for t in terms)
    rule = (f"{name} {value_text(value)}" for name, value in copy["filter"].items())
    fields = body["about"] | {
        "publication_date": released,
        "variant_name": "Pure DP" if budget["delta"] == "0" else "Approximate DP",
        "privacy_unit": copy["unit"],
        "privacy_unit_details": f"Neighbouring relation: {copy['relation']}.",
        "privacy_parameters": {n: float(text) for n, text in numbers.items()},
        "privacy_parameters_details": f"{term_guarantee(copy, views)} {odds}",
        "release_type_details": f"{words} Opened: {', '.join(opened)}.",
        "composition": f"Privacy filter of dpflow: {', '.join(rule)}.",
        "notes": f"Dataset {dataset}, entry {entry[0]}, hash {entry[1]} of ledger "
        f"{ledger.id}. `dpflow ledger verify --entry FILE` compares the two.",
    }
    if missing := sorted(_REQUIRED - fields.keys()):
        msg = (
            f"the applied policy of dataset {dataset!r} lacks texts of an entry: "
            f"{', '.join(missing)}. Add them to its `about:`, and run "
            f"`dpflow policy apply {dataset}`."
        )
        raise ConfigurationError(msg)
    fields |= {name: re.split(r"\s*;\s*", fields[name]) for name in _LISTS}
    deployment = {}
    for section, names in FIELDS.items():
        if values := {name: fields[name] for name in names if name in fields}:
            deployment[section] = values
    return {
        "url_slug": re.sub(r"[^a-z0-9]+", "-", dataset.lower()).strip("-"),
        "status": "Draft",
        "tier": 2,
        "deployment": deployment,
    }


def entry_differences(ledger: Ledger, entry: Mapping[str, Any]) -> list[str]:
    """Compare the deployment of a registry entry with the journal.

    Returns:
        Lines such as "deployment.basic.name: ledger A, file B"; none if it is true.

    Raises:
        ConfigurationError: If it names no place of a journal, or one without a release.
    """
    text = json.dumps(entry.get("deployment"), default=float)
    match = _PLACE.search(text)
    if match is None:
        msg = (
            "the file names no entry of a journal. So there is nothing to compare it "
            "with. Write it with `dpflow policy registry`."
        )
        raise ConfigurationError(msg)
    wanted = registry_entry(ledger, match[1], int(match[2]))["deployment"]
    return difference_lines({"deployment": wanted}, {"deployment": json.loads(text)})
