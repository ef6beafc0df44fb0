"""Partitions of a dataset: disjoint parts, each with a budget of its own.

A partition's name is public and fixed before data is read: a calendar week or month,
or a public id of the person. A record belongs to one partition for ever.
"""

from __future__ import annotations

import re
from datetime import date
from typing import Literal

from pydantic import Field, field_validator

from dpflow.exceptions import ConfigurationError
from dpflow.policy.fields import Record
from dpflow.policy.types import NAME_PATTERN, Text, problem, shown

_WEEK = re.compile(r"(\d{4})-W(\d{2})")
_MONTH = re.compile(r"(\d{4})-(\d{2})")
_SHAPES = {"week": "2026-W05", "month": "2026-01"}


class Partition(Record):
    """How a dataset is divided, and what that does and does not protect."""

    by: Text = Field(
        title="By",
        description="What tells partitions apart: `week` or `month` of a row (the unit "
        "must follow, as in user-week), or the name of a public id of the person.",
        examples=["week", "month", "region"],
    )
    replace: Literal["within"] | None = Field(
        default=None,
        title="Replace",
        description="Under replace-one: that a replaced record stays in its partition.",
        examples=["within"],
    )

    @field_validator("by")
    @classmethod
    def _usable(cls, value: str) -> str:
        if not re.fullmatch(NAME_PATTERN, value):
            message = f"by {shown(value)} is not a usable name."
            raise problem(message, "Write week, month or the name of a public id.")
        # Taken for an id of the person, it would promise each one a budget a week.
        period = value.casefold().removesuffix("s")
        if period in _SHAPES and value != period:
            message = f"by {shown(value)} is not how a period is written."
            raise problem(message, f"Write {period}.")
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
        if not self._fits(name):
            shape = _SHAPES.get(self.by)
            example = f", as in {shape}" if shape else ": letters, digits and . _ : @ -"
            msg = (
                f"dataset {dataset!r} is divided by {self.by}, and {name!r:.80} names "
                f"no {self.by}{example}. The step did not run."
            )
            raise ConfigurationError(msg)

    def _fits(self, name: str) -> bool:
        if self.by == "week":
            return _is_week(name)
        if self.by == "month":
            found = _MONTH.fullmatch(name)
            return bool(found and found[1] != "0000" and 1 <= int(found[2]) <= 12)  # noqa: PLR2004
        # A slash would let one account's id be read as another's.
        return "/" not in name and re.fullmatch(NAME_PATTERN, name) is not None

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


def _is_week(name: str) -> bool:
    found = _WEEK.fullmatch(name)
    if not found:
        return False
    try:
        date.fromisocalendar(int(found[1]), int(found[2]), 1)
    except ValueError:
        return False
    return True
