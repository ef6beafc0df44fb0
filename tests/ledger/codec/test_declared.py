"""Dataclasses and pydantic models are stored once they are declared."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from enum import Enum, Flag
from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict, Field

from dpflow.exceptions import ConfigurationError, ReleaseError
from dpflow.interop import releasable
from dpflow.ledger.codec import decode, encode
from tests.ledger.codec.stored import again


@releasable
@dataclass(frozen=True)
class Range:
    """A part of a summary, with a check of its own."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if self.low > self.high:
            msg = "low above high"
            raise ValueError(msg)


@releasable
@dataclass
class Summary:
    """A dataclass with fields of many kinds."""

    customers: int
    spend: Range
    by_week: dict[str, tuple[int, ...]] = field(default_factory=dict)


@releasable
class Model(BaseModel):
    """A pydantic model."""

    name: str
    parts: list[Range]


@releasable
class Kind(Enum):
    """How a report came out."""

    GOOD = "good"
    BAD = "bad"


class Rights(Flag):
    """Members that add up to what has no name."""

    READ = 1


@dataclass
class Undeclared:
    """Nobody said that it may be stored."""

    secret: int


class Open(BaseModel):
    """A model that takes any field."""

    model_config = ConfigDict(extra="allow")


@pytest.mark.parametrize(
    "value",
    [
        Range(1, 2.5),
        Summary(3, Range(0, 1), {"w1": (1, 2)}),
        {"kind": Kind.BAD},
        [Summary(1, Range(0, 0)), {"m": Model(name="", parts=[])}],
    ],
)
def test_a_declared_value_comes_back(value: object) -> None:
    """Equal and of the same type, from canonical text."""
    assert again(value) == value


def test_a_declared_class_vouches_for_itself_only() -> None:
    """Neither for its subclasses nor for what its fields hold, and values stay out."""

    class Below(Summary):
        """Has its own meaning."""

    with pytest.raises(ReleaseError, match="Below"):
        encode(Below(1, Range(0, 1)))
    with pytest.raises(ReleaseError, match=r"Undeclared.*releasable") as refused:
        encode(Summary(1, Undeclared(4711)))  # type: ignore[arg-type]
    assert "4711" not in str(refused.value)
    releasable(Open)
    with pytest.raises(ReleaseError, match="does not declare"):
        encode(Open(more=1))


class Aliased(BaseModel):
    """Reads under another name than it writes."""

    name: str = Field(alias="Name")


@dataclass
class Derived:
    """Has a field that its constructor does not take."""

    a: int
    twice: int = field(init=False, default=0)


class Hidden(BaseModel):
    """Holds something that is no field."""

    _cache: int = 0


@pytest.mark.parametrize(
    "cls", [int, Aliased, Derived, Hidden, Rights, "Summary", object()]
)
def test_what_could_not_be_made_again_cannot_be_declared(cls: type) -> None:
    """It is said when the class is declared."""
    with pytest.raises(ConfigurationError, match="cannot be releasable"):
        releasable(cls)


@pytest.mark.parametrize(
    "text",
    [
        '{"$type":"declared.os.system","parts":["true"]}',
        '{"$type":"declared.builtins.dict","parts":[{}]}',
        '{"$type":"declared.tests.ledger.codec.test_declared.Range","parts":[[]]}',
        '{"$type":"declared.tests.ledger.codec.test_declared.Kind","parts":["UGLY"]}',
    ],
)
def test_text_makes_declared_classes_only(text: str) -> None:
    """Whatever else it names is not even imported."""
    with pytest.raises(ReleaseError):
        decode(text)


def test_the_checks_of_a_class_run_when_it_is_read_back() -> None:
    """A damaged value is no value."""
    text = encode(Range(1, 2)).replace('"high":2', '"high":0')
    with pytest.raises(ReleaseError, match="damaged"):
        decode(text)


def test_another_process_reads_it_once_its_module_is_imported(tmp_path: Path) -> None:
    """And says which module is missing before."""
    (tmp_path / "shapes.py").write_text(
        "from dataclasses import dataclass\nfrom dpflow.interop import releasable\n"
        "@releasable\n@dataclass\nclass Dot:\n    x: int\n"
    )
    text = '{"$type":"declared.shapes.Dot","parts":[{"x":1}]}'
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from dpflow.ledger.codec import decode\n"
        "try:\n    decode(sys.argv[2])\nexcept Exception as error:\n    print(error)\n"
        "import shapes\nprint(decode(sys.argv[2]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), text],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    first, second = done.stdout.splitlines()
    assert "shapes.Dot" in first
    assert second == "Dot(x=1)"
