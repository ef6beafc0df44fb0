"""Partitions of a dataset: disjoint parts, each with a budget of its own.

A partition's name is public and fixed before data is read: an hour, a day, a week or a
month of the calendar, or a public id of the person. A record belongs to one
partition permanently, so that periods need a time zone that is never changed.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Literal
from zoneinfo import ZoneInfo

from pydantic import Field, field_validator

from dpflow.exceptions import ConfigurationError
from dpflow.interrupts import without_interrupts
from dpflow.policy.fields import Record
from dpflow.policy.types import NAME_PATTERN, Name, Text, problem, shown

#: The periods of a calendar, each with the one shape of its names.
_SHAPES = {
    "hour": "2026-01-31T09",
    "day": "2026-01-31",
    "week": "2026-W05",
    "month": "2026-01",
}


class Partition(Record):
    """How a dataset is divided, and what that does and does not protect."""

    by: Name = Field(
        description="What tells partitions apart: `hour`, `day`, `week` or `month` of "
        "a row (the unit must follow, as in user-day), or the name of a public id of "
        "the person.",
        examples=["day", "week", "region"],
    )
    zone: Text | None = Field(
        default=None,
        description="Time zone in which periods begin and end; default: UTC.",
        examples=["Europe/Berlin"],
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
        if period in _SHAPES and value != period:
            message = f"by {shown(value)} is not how a period is written."
            raise problem(message, f"Write {period}.")
        return value

    @field_validator("zone")
    @classmethod
    def _known(cls, value: str | None) -> str | None:
        try:
            ZoneInfo(value or "UTC")
        except without_interrupts(KeyError, ValueError, OSError):
            message = f"zone {shown(value)} is no time zone of this system."
            hint = "Write one such as UTC or Europe/Berlin, or install tzdata."
            raise problem(message, hint) from None
        return value

    @property
    def by_time(self) -> bool:
        """Whether one person may be in several partitions, one for each period."""
        return self.by in _SHAPES

    def check_name(self, name: str, dataset: str) -> None:
        """Refuse a name that no partition of the dataset can have.

        Two spellings of one week would be two budgets for the same rows.

        Raises:
            ConfigurationError: If the name has not its one shape.
        """
        if not self.fits(name):
            shape = _SHAPES.get(self.by)
            example = f", as in {shape}" if shape else ": letters, digits and . _ : @ -"
            msg = (
                f"dataset {dataset!r} is divided by {self.by}, and {name!r:.80} names "
                f"no {self.by}{example}. The step did not run."
            )
            raise ConfigurationError(msg)

    def fits(self, name: str) -> bool:
        """Say whether a partition of the dataset can have a name."""
        if not self.by_time:
            # A slash would let one account's id be read as another's.
            return "/" not in name and re.fullmatch(NAME_PATTERN, name) is not None
        try:
            datetime.fromisoformat(f"{name}-01" if self.by == "month" else name)
        except without_interrupts(ValueError):
            return False
        # A period has one spelling, to the letter.
        return re.fullmatch(re.sub(r"\d", "[0-9]", _SHAPES[self.by]), name) is not None

    def problem_with(self, unit: str, relation: str) -> tuple[str, str] | None:
        """Return what is wrong with these under partitions, and what to do."""
        if self.zone is not None and not self.by_time:
            return "only periods have a time zone.", "Drop `zone`."
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
