"""Fields of an entry in the public registry of DP deployments, and a policy's texts.

Names are those of the registry, https://github.com/opendp/deployments-registry-data.
A policy gives free texts in `about:`, on which no guarantee rests; the ledger gives
the other fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator

from dpflow.policy.types import LongText, did_you_mean, problem, shorten

#: Section of an entry -> its fields, as dpflow writes them.
FIELDS: Mapping[str, tuple[str, ...]] = {
    "basic": (
        *("name", "data_curators", "description", "intended_use"),
        *("data_product_type", "data_product_region", "publication_date"),
    ),
    "dp_variant": ("variant_name", "data_domain", "unprotected_quantities"),
    "privacy_loss": (
        *("privacy_unit", "privacy_unit_details"),
        *("privacy_parameters", "privacy_parameters_details"),
    ),
    "deployment_model": (
        *("model_name", "actors", "release_type", "release_type_details"),
        *("data_source_type", "access_type"),
    ),
    "accounting": ("composition", "post_processing"),
    "implementation": ("mechanisms", "justification"),
    "administrative": ("sources", "notes", "registry_authors"),
}
#: Fields that the ledger gives.
PROVEN = {"publication_date", "variant_name", "release_type_details"}
PROVEN |= {*FIELDS["privacy_loss"], "composition", "notes"}
TEXTS = {name for names in FIELDS.values() for name in names} - PROVEN


def _check_names(texts: Mapping[str, str]) -> Mapping[str, str]:
    for name in sorted(texts.keys() - TEXTS):
        message = f"about has no text {shorten(name)}."
        raise problem(message, did_you_mean(name, TEXTS))
    return texts


#: Free texts by name.
About = Annotated[Mapping[str, LongText], AfterValidator(_check_names)]
