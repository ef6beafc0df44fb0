"""A strict reading of YAML for policies: exact numbers, and the line of every key.

YAML has many ways to say something else than what a reader sees: a float that loses
digits, a second key that silently wins, an alias, a `no` that is a boolean. A budget
must not depend on any of them. So numbers keep their literal text (`1e-6` and `0.1` are
exact decimals), only `true` and `false` are booleans, and all else is
refused. So are invisible characters: some of them end a line, and with it a comment,
for YAML and for no editor or review (`unit: person  # note<NEL>errors: keep`), others
turn the direction of what follows.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, NoReturn

import yaml

from dpflow.exceptions import PolicyError
from dpflow.interrupts import without_interrupts

#: A policy is a page of text; anything larger is not one.
MAX_BYTES = 64 * 1024
#: Deeper than any theorem's options need.
MAX_DEPTH = 8
#: Digits and exponents beyond these are typing errors, and would be slow to compute.
MAX_NUMBER_CHARACTERS = 64
MAX_EXPONENT = 400

#: How a key is reached from the top of the document.
KeyPath = tuple[str | int, ...]

NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?", re.ASCII)
#: Kinds of unquoted values, the first that fits; anything else is text.
_KINDS = {
    "null": re.compile(r"(~|null|Null|NULL)?"),
    "bool": re.compile(r"true|True|TRUE|false|False|FALSE"),
    "nonfinite": re.compile(r"[-+]?\.inf|\.nan", re.ASCII | re.IGNORECASE),
    "octal": re.compile(r"[-+]?0[0-9]+", re.ASCII),
    "int": re.compile(r"[-+]?[0-9]+", re.ASCII),
    "float": NUMBER,
}

#: Unicode's kinds of invisible characters: controls, marks of direction and format,
#: ends of lines and paragraphs.
_HIDING = frozenset({"Cc", "Cf", "Zl", "Zp"})

_TAG = "tag:yaml.org,2002:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """What a policy file says, and where.

    Attributes:
        file: Name of the file, for messages.
        data: The document, with numbers as `int` or `Decimal`.
        lines: Line of each key and list item, counted from one.
    """

    file: str
    data: dict[str, Any]
    lines: dict[KeyPath, int]

    def line_of(self, path: KeyPath) -> int:
        """Return the line of a key, or of the nearest key around it."""
        around = (self.lines.get(path[:n]) for n in range(len(path), -1, -1))
        return next(filter(None, around), 1)


def policy_error(file: str, line: int | None, message: str, hint: str) -> PolicyError:
    """Make the error for a place in a policy file."""
    location = file if line is None else f"{file}:{line}"
    text = f"{location}: {message} {hint}".rstrip()
    return PolicyError(text, file=file, line=line, hint=hint)


def read_document(path: Path) -> Document:
    """Read a policy file.

    Raises:
        PolicyError: If the file cannot be read, is too large, is not UTF-8, or is
            not one plain mapping.
    """
    file = str(path)
    try:
        if path.exists() and not path.is_file():
            hint = "Give the path of a YAML file."
            raise policy_error(file, None, "this is not a regular file.", hint)
        with path.open("rb") as stream:
            # One byte more than allowed is enough to know, however large the file is.
            content = stream.read(MAX_BYTES + 1)
    except without_interrupts(OSError) as error:
        reason = error.strerror or type(error).__name__
        hint = "Check the path and its permissions."
        message = f"the policy cannot be read: {reason}."
        raise policy_error(file, None, message, hint) from error
    return parse_document(content, file)


def parse_document(content: bytes, file: str) -> Document:
    """Read a policy from the bytes of a file; see `read_document`."""
    if len(content) > MAX_BYTES:
        message = f"a policy may have at most {MAX_BYTES // 1024} KiB."
        raise policy_error(file, None, message, "Give each dataset a file of its own.")
    try:
        text = content.decode("utf-8")
    except without_interrupts(UnicodeDecodeError) as error:
        line = content.count(b"\n", 0, error.start) + 1
        message = f"byte {content[error.start]:#04x} is not UTF-8."
        raise policy_error(file, line, message, "Save the file as UTF-8.") from None
    _refuse_hiding(text, file)
    loader = _Loader(text, file)
    data = loader.mapping(loader.root(), ())
    return Document(file=file, data=data, lines=loader.lines)


def _refuse_hiding(text: str, file: str) -> None:
    """Refuse characters by which YAML may read something else than a reviewer sees.

    Tabs, line feeds, CR LF and a byte order mark at the start are read alike by all.
    """
    # A blank for a blank: the positions stay, and so does the line.
    plain = text.replace("\r\n", " \n").removeprefix("\ufeff")
    for position, sign in enumerate(plain):
        shows = unicodedata.category(sign) not in _HIDING
        if (shows and not yaml.SafeLoader.NON_PRINTABLE.match(sign)) or sign in "\t\n":
            continue
        line = plain.count("\n", 0, position) + 1
        name = f"U+{ord(sign):04X}, {unicodedata.name(sign, 'a control character')}"
        message = f"the sign {name}, is invisible and may hide a field."
        hint = "Delete all behind the last sign that you see, and type the line again."
        raise policy_error(file, line, message, hint)


class _Loader(yaml.SafeLoader):
    """PyYAML's parser without what a policy must not use, and with exact numbers."""

    def __init__(self, text: str, file: str) -> None:
        super().__init__(text)
        self.lines: dict[KeyPath, int] = {}
        self._file = file
        self._depth = 0

    def root(self) -> yaml.MappingNode:
        """Compose the one document, which has to be a mapping."""
        try:
            root = self.get_single_node()
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            problem = " ".join(part for part in (error.context, error.problem) if part)
            hint = "Write one document; check indentation, colons and quotes there."
            line, message = mark.line + 1 if mark else None, f"not YAML: {problem}."
            raise policy_error(self._file, line, message, hint) from None
        except without_interrupts(ValueError, OverflowError):
            # PyYAML turns \U escapes into characters without checking their range.
            raise self._no_character(self.line + 1) from None
        if not isinstance(root, yaml.MappingNode):
            hint = "Start with `dataset: NAME`, `unit:`, `relation:` and `budget:`."
            message = "a policy must be a mapping of fields to values."
            line = _line(root) if root else 1
            raise policy_error(self._file, line, message, hint)
        return root

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose a node, refusing aliases, anchors, tags and deep nesting."""
        event = self.peek_event()  # type: ignore[no-untyped-call]
        hint = "Write the value out where it is used, and quote it to make it text."
        mark = "alias *" if isinstance(event, yaml.AliasEvent) else "anchor &"
        if event.anchor is not None:
            self._refuse(event, f"the {mark}{event.anchor} is not allowed.", hint)
        if (tag := getattr(event, "tag", None)) is not None:
            self._refuse(event, f"the tag {tag} is not allowed.", hint)
        if self._depth > MAX_DEPTH:
            message = f"nested deeper than {MAX_DEPTH} levels."
            self._refuse(event, message, "Flatten the options.")
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1

    def resolve(self, kind: type[yaml.Node], value: str, implicit: object) -> str:
        """Name the type of a value; only unquoted text can be more than text."""
        if kind is yaml.SequenceNode:
            return self.DEFAULT_SEQUENCE_TAG
        if kind is yaml.MappingNode:
            return self.DEFAULT_MAPPING_TAG
        # PyYAML passes (unquoted, quoted); tags, its third case, are refused.
        unquoted = isinstance(implicit, tuple) and implicit[0]
        fitting = (name for name, shape in _KINDS.items() if shape.fullmatch(value))
        return _TAG + (next(fitting, "str") if unquoted else "str")

    # Nodes as plain data

    def mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        """Return a mapping, and remember the lines of its keys."""
        self.lines.setdefault(path, _line(node))
        data: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = self._key(key_node)
            if key in data:
                first = self.lines[*path, key]
                message = f"the key {key!r} appears twice (first on line {first})."
                self._refuse(key_node, message, "Keep one of them.")
            self.lines[*path, key] = _line(key_node)
            data[key] = self._value(value_node, (*path, key))
        return data

    def _key(self, node: yaml.Node) -> str:
        if not isinstance(node, yaml.ScalarNode):
            self._refuse(node, "a key must be plain text.", "Write `name: …`.")
        if _kind(node) != "str":
            hint = "Numbers have a point, not a comma. Is it a name? Quote it: "
            message = f"the key {node.value!r} is not text."
            self._refuse(node, message, f'{hint}"{node.value}".')
        return self._text(node)

    def _value(self, node: yaml.Node, path: KeyPath) -> object:
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path)
        self.lines.setdefault(path, _line(node))
        if isinstance(node, yaml.SequenceNode):
            return [self._value(item, (*path, i)) for i, item in enumerate(node.value)]
        kind, key = _kind(node), key_text(path)
        if kind in {"int", "float"}:
            number = exact_decimal(node.value)
            if number is None:
                message = f"{key} is too long or too extreme for a number."
                hint = f"Use at most {MAX_NUMBER_CHARACTERS} characters."
                self._refuse(node, message, hint)
            return int(number) if kind == "int" else number
        if kind == "null":
            message = f"{key} has no value."
            self._refuse(node, message, "Give one, or delete the line.")
        if kind == "nonfinite":
            message = f"{key} must be a finite number, got {node.value}."
            self._refuse(node, message, "Write it as a number such as 0.5 or 1e-6.")
        if kind == "octal":
            message = f"{key}: {node.value} has a leading zero."
            self._refuse(node, message, "Drop the zero, or quote the value if a name.")
        return node.value.lower() == "true" if kind == "bool" else self._text(node)

    def _text(self, node: yaml.Node) -> str:
        # A lone surrogate can be escaped into YAML but not stored or logged.
        if any("\ud800" <= character <= "\udfff" for character in node.value):
            raise self._no_character(_line(node))
        return str(node.value)

    def _no_character(self, line: int) -> PolicyError:
        message = "an escape in a quoted text names no character."
        return policy_error(self._file, line, message, "Write the character itself.")

    def _refuse(
        self, part: yaml.Node | yaml.Event, message: str, hint: str
    ) -> NoReturn:
        raise policy_error(self._file, _line(part), message, hint)


def _kind(node: yaml.Node) -> str:
    return str(node.tag).removeprefix(_TAG)


def _line(part: Any) -> int:
    return int(part.start_mark.line) + 1


def exact_decimal(text: str) -> Decimal | None:
    """Read decimal text exactly; None if it is no number of a reasonable size."""
    if len(text) > MAX_NUMBER_CHARACTERS or not NUMBER.fullmatch(text):
        return None
    exponent = text.lower().partition("e")[2]
    if exponent and abs(int(exponent)) > MAX_EXPONENT:
        return None
    return Decimal(text)


def key_text(path: KeyPath) -> str:
    """Write the place of a key for people: `flows.weekly-report.epsilon`."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return "".join(parts).removeprefix(".")
