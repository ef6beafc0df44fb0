"""Bounding what one person contributes to a table, and the sensitivity that follows.

The privacy unit may have any number of rows with any numbers in them. Keeping a few
rows of each person and clipping the numbers bounds by how much one person moves counts
and sums. The bound holds only if no person's rows are chosen by looking at others'
rows: each person's rows are ranked among themselves alone.

What is said here of the sensitivity needs no data: make `Contributions` first, declare
the cost from it, and bound the frame inside the step.
"""

from __future__ import annotations

import inspect
import math
import reprlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal, TypeVar, cast, get_args

from dpflow.exceptions import ContributionsError, PublicContributionsError, require
from dpflow.guard.bodies import current_body
from dpflow.rounding import Number, exact, number_text

Frame = TypeVar("Frame")
Relation = Literal["add-or-remove", "replace-one"]
Norm = Literal["l1", "l2"]
Word = Literal["text", "bytes", "uuid", "date", "decimal"]

#: Clipped numbers are at most this many steps of the grid: sums over 2**32 rows of them
#: still fit int64, so that adding them up rounds nothing.
LARGEST = 2**31
#: Square roots are rounded up to multiples of this.
_ROOT = 10**12
#: The key by which rows are chosen where nothing else is said. Public: that a hash does
#: not follow time is what it is for, and the sensitivity holds for every key.
SEED = "dpflow"
_EXAMPLE = '{"amount": Clip(0, 200)}'
#: Shortens values of several names without losing a bracket.
_SHORT = reprlib.Repr()
_SHORT.maxother = _SHORT.maxstring = 60


@dataclass(frozen=True, slots=True)
class Clip:
    """How one column is clipped.

    Args:
        low: Smaller numbers become this one.
        high: Larger numbers become this one.
        grid: Numbers are rounded to multiples of it, and the bounded column counts
            them as integers: with 0.01, dollars become cents. Sums of integers are
            exact; sums of floats round, and their sensitivity is larger than it looks.
        objects: What a pandas column of dtype object holds: "decimal", or None where
            there is no such column. Text in it would count as zero.

    Raises:
        InvalidCost: If a number cannot be used.
        ConfigurationError: If the bounds are no multiples of the grid, are the wrong
            way around, or are too many steps of it apart, or `objects` is unknown.
    """

    low: Number
    high: Number
    grid: Number = 1
    objects: Literal["decimal"] | None = None

    def __post_init__(self) -> None:
        """Check that the bounds lie on the grid."""
        problem = f'objects must be "decimal" or None, got {self.objects!r:.60}'
        require(self.objects in (None, "decimal"), problem)
        step = self.step
        for name, bound in (("low", self.low), ("high", self.high)):
            number = exact(bound, name=name)
            require(
                (number / step).denominator == 1 and abs(number / step) <= LARGEST,
                f"{name}={number_text(number)} must be a multiple of "
                f"grid={number_text(step)}, and at most {LARGEST} of them",
            )
        problem = f"low={self.low} is above high={self.high}: swap them"
        require(self.steps[0] <= self.steps[1], problem)

    @property
    def step(self) -> Fraction:
        """The grid's step, exact."""
        return exact(self.grid, name="grid", low=Fraction(1, 10**15))

    @property
    def steps(self) -> tuple[int, int]:
        """The bounds in steps of the grid."""
        return (
            int(exact(self.low, name="low") / self.step),
            int(exact(self.high, name="high") / self.step),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Contributions:
    """What one person contributes at most, declared before any data is read.

    Attributes:
        unit: Columns that together name the privacy unit.
        max_rows: Most rows that one person contributes.
        relation: The neighbouring relation of the policy.
        clip: How columns are clipped that are to be summed; counts need none.
        by: Columns that name a row's group.
        max_rows_per_group: Most rows of one person in one group.
        order_by: A person contributes the first rows by these columns.
        seed: Without `order_by`, a person's rows are chosen by a hash with this key,
            the same ones at every run. None keeps the first in the frame's order: where
            that is time, early rows are counted more often than late ones.
        objects: What columns of dtype object in `unit`, `by` and `order_by` hold: one
            word for all of them, or a word for each column. An entry of another type
            names nothing. Columns of other dtypes ignore it, so that one program runs
            under pandas 2, whose texts are objects, and pandas 3.

    Raises:
        ConfigurationError: If these cannot bound anything.
    """

    unit: tuple[str, ...]
    max_rows: int
    relation: Relation
    clip: Mapping[str, Clip] = field(default_factory=dict)
    by: tuple[str, ...] = ()
    max_rows_per_group: int | None = None
    order_by: tuple[str, ...] = ()
    seed: str | None = SEED
    objects: Word | Mapping[str, Word] = field(default_factory=dict)
    #: Whether it was made outside of a step's body, so that its names are public.
    _declared: bool = field(default=True, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse what would bound nothing."""
        object.__setattr__(self, "_declared", current_body() is None)
        for name in ("unit", "by", "order_by"):
            _check_names(name, getattr(self, name), tuple, '("customer",)')
        _check_names("clip", self.clip, Mapping, _EXAMPLE)
        _check_rows("max_rows", self.max_rows)
        require(
            self.relation in ("add-or-remove", "replace-one"),
            "relation must be add-or-remove or replace-one, as the policy says, "
            f"got {self.relation!r:.60}",
        )
        problem = "give by= and max_rows_per_group= together, or neither"
        require((self.max_rows_per_group is None) != bool(self.by), problem)
        if self.max_rows_per_group is not None:
            _check_rows("max_rows_per_group", self.max_rows_per_group)
        _check_choice(self.order_by, self.seed)
        columns = {*self.unit, *self.by, *self.order_by}
        both = columns & self.clip.keys()
        what = f"{sorted(both)} are clipped" if self.unit else "unit= is empty"
        problem = f"{what}; unit, groups and order need columns of their own"
        require(self.unit and not both, problem)
        _check_words(self.objects, columns)
        for name, clip in self.clip.items():
            problem = f"clip[{name!r}] must be a Clip, such as {_EXAMPLE}, got {clip!r}"
            require(isinstance(clip, Clip), problem)

    def word_of(self, column: str) -> str:
        """Return what a column of dtype object holds; "" if nothing is declared."""
        if column in self.clip:
            return "number" if self.clip[column].objects else ""
        objects = self.objects
        return objects if isinstance(objects, str) else objects.get(column, "")

    def count(self, *, by: Sequence[str] = (), norm: Norm = "l1") -> Fraction:
        """Return by how much one person changes a count of rows.

        Args:
            by: Columns that group the counts. The change is that of the vector over
                all groups; each row is in one group. The groups must be public.
            norm: For a Laplace "l1", for a Gaussian "l2". L1 is never the smaller one.
        """
        return self._norm([(0, 1)], by, norm)

    def sum(self, *columns: str, by: Sequence[str] = (), norm: Norm = "l1") -> Fraction:
        """Return by how much one person changes sums of clipped columns.

        Args:
            *columns: Which are summed; several are one vector.
            by: As for `count`.
            norm: As for `count`.

        Returns:
            The sensitivity in steps of the columns' grids.

        Raises:
            ConfigurationError: If a column is not clipped, so that nothing bounds it.
        """
        for name in columns:
            require(
                name in self.clip and columns.count(name) == 1,
                f"column {name!r} is not clipped, or named twice: say clip=, such "
                f"as {_EXAMPLE}",
            )
        require(columns, "name the columns that are summed")
        return self._norm([self.clip[name].steps for name in columns], by, norm)

    def bound(self, frame: Frame) -> Frame:
        """Return each person's contributed rows, with clipped columns.

        Rows without a person are dropped: the id is missing, NaN, or of another type
        than `objects` says. In clipped columns whatever is no number
        (NaN, None) counts as zero before it is clipped, infinities as the bounds; they
        never raise, for an error would tell of them. Two frames are neighbours if they
        agree, in order, on the rows of all other people.

        Args:
            frame: A pandas or polars DataFrame; it is not changed. Or a lazy table (a
                polars LazyFrame, a DuckDB relation, a table of ibis or PySpark), whose
                engine does it: it needs `order_by`, and breaks ties by all other
                columns.

        Returns:
            A frame of the same kind, its rows in the same order, which lazy tables do
            not have; clipped columns hold integers. A pandas index of numbers without a
            name is made anew.

        Raises:
            ContributionsError: If it is no such frame, or lacks a column, or if the
                running step's policies say another relation. Inside a body its text
                has the names that were declared outside, or that the calling code
                spells out; others may contain data.
        """
        # It imports numpy, which a declaration does not need.
        from dpflow.bounding.tables import bound_table  # noqa: PLC0415

        _check_relation(self.relation)
        try:
            return cast("Frame", bound_table(frame, self))
        except ContributionsError as error:
            reason = error.message if self._declared or self._is_spelled_out() else None
        msg = reason or (
            "the frame lacks a column that is to be bounded, or it has another type. "
            "Its name is withheld: it was computed inside the body. Make Contributions "
            "before the step, and the error names it"
        )
        raise PublicContributionsError(msg)

    def _is_spelled_out(self) -> bool:
        """Return True if all names are constants of the calling code, and so public."""
        frame = inspect.currentframe()
        while frame is not None and frame.f_globals is globals():
            frame = frame.f_back
        written = set() if frame is None else set(_texts(frame.f_code.co_consts))
        return {*self.unit, *self.by, *self.order_by, *self.clip} <= written

    def _norm(
        self, ranges: Collection[tuple[int, int]], by: Sequence[str], norm: Norm
    ) -> Fraction:
        """Return the sensitivity of sums of numbers in these ranges.

        A person's sum over m rows with numbers in [a, b] lies between m min(a, 0) and
        m max(b, 0), for a person may have fewer rows. Over groups, the norm of what one
        person adds is largest where groups are filled one after the other, for both
        norms are convex; who is replaced may have been in other groups altogether.
        """
        by = (by,) if isinstance(by, str) else by
        _check_names("by", by, Sequence, '("week",)')
        require(norm in ("l1", "l2"), f"norm must be l1 or l2, got {norm!r:.60}")
        largest = [max(abs(low), abs(high)) for low, high in ranges]
        replaced = self.relation == "replace-one"
        if not by:
            widths = [max(high, 0) - min(low, 0) for low, high in ranges]
            sizes = [self.max_rows * size for size in (widths if replaced else largest)]
            if norm == "l1":
                return Fraction(sum(sizes))
            return _root_up(sum(size**2 for size in sizes))
        if norm == "l1":
            return Fraction(self.max_rows * sum(largest) * (2 if replaced else 1))
        squares = self._square_rows(by) * sum(size**2 for size in largest)
        if not replaced:
            return _root_up(squares)
        # Numbers of one sign cannot reinforce each other within a group.
        signed = any(low < 0 < high for low, high in ranges)
        return _root_up(squares * (4 if signed else 2))

    def _square_rows(self, by: Sequence[str]) -> int:
        """Return the largest sum of squares of a person's rows over groups."""
        limit = self.max_rows
        # In finer groups a person has no more rows than in those that were bounded.
        if self.max_rows_per_group is not None and {*self.by} <= {*by}:
            limit = min(limit, self.max_rows_per_group)
        full, extra = divmod(self.max_rows, limit)
        return full * limit**2 + extra**2


def _check_names(what: str, names: Any, kind: Any, example: str) -> None:
    """Refuse names of columns that are no texts: frames take numbers for places."""
    require(
        isinstance(names, kind) and all(isinstance(n, str) for n in names),
        f"{what} must name columns by their texts, such as {example}, got "
        f"{_SHORT.repr(names)}. Rename a column that has a number for its name",
    )


def _check_words(objects: Any, columns: Collection[str]) -> None:
    """Refuse a word that is unknown, or is said of another column."""
    words = objects if isinstance(objects, Mapping) else {"": objects}
    are_words = all(word in get_args(Word) for word in words.values())
    require(
        are_words and words.keys() <= {"", *columns},
        f"objects must be one of {', '.join(get_args(Word))}, or a mapping of "
        f"columns in unit, by and order_by to such words, got {_SHORT.repr(objects)}",
    )


def _check_relation(relation: Relation) -> None:
    """Refuse another relation than that of the policies of the running step.

    A thread of a body counts as the body: its rows are of the step's data.
    """
    execution = current_body()
    if execution is None:
        return
    relations = {policy.relation for policy in execution.request.policies}
    # Where people may be replaced and added, being replaced changes more.
    needed = "replace-one" if "replace-one" in relations else "add-or-remove"
    problem = (
        f"relation={relation!r}, but the policies of the running step say {needed}"
    )
    require(relation == needed, problem, PublicContributionsError)


def _texts(constants: Iterable[object]) -> Iterator[str]:
    """Yield the texts among constants, those in tuples included."""
    for constant in constants:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, tuple):
            yield from _texts(constant)


def _check_rows(name: str, rows: Any) -> None:
    is_integer = isinstance(rows, int) and not isinstance(rows, bool)
    problem = f"{name} must lie in [1, 10**9] and be a whole number, got {rows!r:.60}"
    require(is_integer and 1 <= rows <= 10**9, problem)


def _check_choice(order_by: Sequence[str], seed: object) -> None:
    problem = f'seed must be text, such as "2026", or None, got {seed!r:.60}'
    require(isinstance(seed, str | None), problem)
    problem = "give order_by= or seed=, not both: each chooses a person's rows"
    require(not order_by or seed in (None, SEED), problem)


def _root_up(square: int) -> Fraction:
    """Return a number whose square is at least this one; the root if it is whole."""
    root = math.isqrt(square)
    if root * root == square:
        return Fraction(root)
    return Fraction(math.isqrt(square * _ROOT**2) + 1, _ROOT)
