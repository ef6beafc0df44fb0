"""Partitions of a dataset: disjoint parts, each with a budget of its own.

A partition's name is public and fixed before data is read: an hour, a day, a week or a
month of the calendar, or a public id of the person. A record belongs to one
partition permanently, so that periods need a time zone that is never changed.
"""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, field_validator

from dpflow.exceptions import require
from dpflow.periods import PERIODS, period_of
from dpflow.policy.fields import Record
from dpflow.policy.types import NAME_PATTERN, Name, problem, shorten


class Partition(Record):
    """How a dataset is divided, and what that does and does not protect."""

    by: Name = Field(
        description="What tells partitions apart: `hour`, `day`, `week` or `month` of "
        "a row (the unit must follow, as in user-day), or the name of a public id of "
        "the person.",
        examples=["day", "week", "region"],
    )
    replace: Literal["within"] | None = Field(
        default=None,
        description="Under replace-one: that a replaced record stays in its partition.",
        examples=["within"],
    )

    @field_validator("by")
    @classmethod
    def _usable(cls, value: str) -> str:
        # Taken for an id of the person, it would promise each one a budget a week.
        period = value.casefold().removesuffix("s")
        if period in PERIODS and value != period:
            message = f"by {shorten(value)} is not how a period is written."
            raise problem(message, f"Write {period}.")
        return value

    @property
    def by_time(self) -> bool:
        """Whether one person may be in several partitions, one for each period."""
        return self.by in PERIODS

    def check_name(self, name: str, dataset: str) -> None:
        """Refuse a name that no partition of the dataset can have.

        Two spellings of one week would be two budgets for the same rows.

        Raises:
            ConfigurationError: If the name has not its one shape.
        """
        example = ": letters a to z or A to Z, digits and . _ : @ -"
        # A slash would let one account's id be read as another's.
        is_name = "/" not in name and re.fullmatch(NAME_PATTERN, name) is not None
        if self.by_time:
            example = f", as in {PERIODS[self.by].example}"
            is_name = period_of(name) is PERIODS[self.by]
        require(
            is_name,
            f"dataset {dataset!r} is divided by {self.by}, and {name!r:.80} names "
            f"no {self.by}{example}. The step did not run.",
        )

    def problem_with(self, unit: str, relation: str) -> tuple[str, str] | None:
        """Return what is wrong with these under partitions, and what to do."""
        if self.by_time and not unit.endswith(f"-{self.by}"):
            message = f"partitions by {self.by} protect a person within one {self.by}."
            hint = (
                f"Say so: `unit: {unit}-{self.by}`, and give `lifetime` a budget if "
                f"the {unit} over all of them matters."
            )
            return message, hint
        if relation == "replace-one" and self.replace is None:
            message = "a replaced record could move to another partition and cost two."
            hint = "Add `replace: within` if it never does, or use add-or-remove."
            return message, hint
        return None
