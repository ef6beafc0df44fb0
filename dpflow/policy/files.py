"""Policies from their files: read, checked together, each problem with its line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from dpflow.exceptions import (
    ConfigurationError,
    DpflowError,
    PolicyError,
    UnknownDataset,
)
from dpflow.interrupts import without_interrupts
from dpflow.policy.model import Policy
from dpflow.policy.population import PREFIX, Population, membership_problem
from dpflow.policy.strict_yaml import (
    NUMBER,
    Document,
    KeyPath,
    key_text,
    parse_document,
    policy_error,
    read_document,
)
from dpflow.policy.types import PROBLEM, did_you_mean, shorten

#: What to do where there is no folder of policies.
NO_FOLDER_HINT = (
    "Work in a project's folder, run `dpflow init`, or set DPFLOW_POLICIES."
)


#: Pydantic's kinds of values, in the words of a YAML file.
_EXPECTED = {"string_type": "text", "tuple_type": "a list"} | dict.fromkeys(
    ("model_type", "model_attributes_type", "mapping_type", "dict_type"), "a mapping"
)


@dataclass(frozen=True, slots=True)
class PolicySet(Mapping[str, Policy]):
    """The policies of a project, by dataset.

    Args:
        policies: One policy for each dataset.
        sources: The file that each policy was read from.
        directory: The folder that was searched, for messages.
        problem: Why the files could not be read, so that there is no policy here.
    """

    policies: Mapping[str, Policy]
    sources: Mapping[str, Path] = field(default_factory=dict)
    directory: Path | None = None
    problem: str | None = None

    def __getitem__(self, dataset: str) -> Policy:
        """Return the policy of a dataset; a missing one is a KeyError."""
        return self.policies[dataset]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the datasets."""
        return iter(self.policies)

    def __len__(self) -> int:
        """Count the datasets."""
        return len(self.policies)

    def policy_for(self, dataset: str) -> Policy:
        """Return the policy of a dataset.

        Raises:
            UnknownDataset: If no policy governs it.
        """
        if dataset not in self.policies:
            raise self._unknown(dataset)
        return self.policies[dataset]

    def populations_of(self, policies: Iterable[Policy]) -> tuple[Policy, ...]:
        """Return the policies of the populations of some datasets, each once.

        Raises:
            UnknownDataset: If one of them has no file.
        """
        names = dict.fromkeys(p.population for p in policies if p.population)
        return tuple(self.policy_for(f"{PREFIX}{name}") for name in names)

    def source(self, dataset: str) -> Path:
        """Return the file that a dataset's policy was read from.

        Raises:
            UnknownDataset: If no policy that was read from a file governs it.
        """
        if dataset not in self.sources:
            raise self._unknown(dataset)
        return self.sources[dataset]

    def _unknown(self, dataset: str) -> DpflowError:
        if self.problem is not None:
            return ConfigurationError(self.problem)
        datasets = sorted(self.policies)
        file = None if self.directory is None else str(self.directory)
        unread = "" if self.directory is None else unread_text(self.directory)
        hint = f"Write one, or correct the name. {did_you_mean(dataset, datasets)}"
        hint = f"{hint} {unread}".rstrip()
        origin = file or "the policies"
        message = f"{origin}: no policy governs the dataset {dataset!r}. {hint}"
        return UnknownDataset(
            message, file=file, line=None, hint=hint, dataset=dataset, known=datasets
        )


def load_policies(directory: Path | str) -> PolicySet:
    """Read all policies of a folder: its *.yaml and *.yml files, not its subfolders.

    Raises:
        PolicyError: If the folder cannot be read, if any file in it is refused, or if
            two files govern one dataset.
    """
    folder = Path(directory)
    policies: dict[str, Policy] = {}
    sources: dict[str, Path] = {}
    for path, policy in read_policies(policy_files(folder)):
        if isinstance(policy, PolicyError):
            raise policy
        policies[policy.dataset], sources[policy.dataset] = policy, path
    _check_populations(policies, sources)
    return PolicySet(policies, sources, folder)


def read_policies(
    paths: Iterable[Path], read: Callable[[Path], Document] = read_document
) -> Iterator[tuple[Path, Policy | PolicyError]]:
    """Yield the policy of each file, or why it is refused.

    A file is, too, if it governs a dataset that an earlier one governs.
    """
    first: dict[str, Path] = {}
    for path in paths:
        try:
            document = read(path)
            policy = _read_policy(document)
            if policy.dataset in first:
                other, line = first[policy.dataset], document.line_of(("dataset",))
                message = f"{other} already governs the dataset {policy.dataset!r}."
                hint = "Keep one file for each dataset."
                raise policy_error(document.file, line, message, hint)
        except PolicyError as error:
            yield path, error
        else:
            first[policy.dataset] = path
            yield path, policy


def policies_in(directory: Path) -> PolicySet:
    """Read the policies of a folder; none where there is no folder."""
    is_folder = directory.is_dir()
    return load_policies(directory) if is_folder else PolicySet({}, {}, directory)


def readable_policies(directory: Path) -> PolicySet:
    """Read the policies of a folder; where one is bad, none, and what is wrong."""
    try:
        return policies_in(directory)
    except PolicyError as error:
        hint = "`dpflow policy check` lists every problem."
        return PolicySet({}, {}, directory, f"{error.message} {hint}")


def policy_files(folder: Path) -> list[Path]:
    """Return the policy files of a folder, not those of its subfolders.

    Raises:
        PolicyError: If the folder cannot be read.
    """
    try:
        paths = sorted(folder.iterdir())
    except without_interrupts(OSError) as error:
        reason = error.strerror or type(error).__name__
        message = f"the policies cannot be read: {reason}."
        raise policy_error(str(folder), None, message, NO_FOLDER_HINT) from error
    return [path for path in paths if is_policy_file(path.name)]


def unread_text(folder: Path) -> str:
    """Return a sentence about policy files in subfolders; "" without any."""
    files = (path for path in folder.rglob("*") if is_policy_file(path.name))
    names = sorted({str(path.parent.relative_to(folder)) for path in files} - {"."})
    if not names:
        return ""
    return f"Subfolders are not read: {', '.join(names)}. Move their policies up."


def is_policy_file(name: str) -> bool:
    """Return True if a file of this name, in the folder of policies, is one."""
    return name.endswith((".yaml", ".yml")) and not name.startswith(".")


def load_policy(path: Path | str) -> Policy:
    """Read one policy file.

    Raises:
        PolicyError: If the file is refused; it names the file, the line and a hint.
    """
    return _read_policy(read_document(Path(path)))


def parse_policy(text: str, *, file: str = "policy") -> Policy:
    """Read a policy from YAML text.

    Args:
        text: What a policy file would hold.
        file: What to call it in messages.

    Raises:
        PolicyError: If the text is refused.
    """
    # A lone surrogate cannot be encoded; the reader refuses what stands in for it.
    return _read_policy(parse_document(text.encode("utf-8", "surrogatepass"), file))


def _read_policy(document: Document) -> Policy:
    """Read the policy of a dataset, or of a population as the ledger keeps it."""
    data = document.data
    try:
        if "population" in data and "dataset" not in data:
            return Population.model_validate(data).as_policy()
        policy = Policy.model_validate(data)
    except ValidationError as error:
        raise _policy_error(error, document) from None
    if policy.dataset.startswith(PREFIX):
        message = f"the dataset's name begins with {PREFIX!r}, as populations' do."
        hint = "Choose another, or write `population: NAME` in place of `dataset:`."
        raise policy_error(document.file, document.line_of(("dataset",)), message, hint)
    return policy


def _check_populations(
    policies: Mapping[str, Policy], paths: Mapping[str, Path]
) -> None:
    """Refuse a dataset whose population has no file, or other people."""
    for dataset, policy in policies.items():
        if policy.population is None:
            continue
        population = policies.get(f"{PREFIX}{policy.population}")
        populations = sorted(
            n.removeprefix(PREFIX) for n in policies if n.startswith(PREFIX)
        )
        message = f"there is no file of the population {policy.population!r}."
        hint = f"Write one. {did_you_mean(policy.population, populations)}"
        problem = (
            membership_problem(policy, population) if population else (message, hint)
        )
        if problem:
            raise policy_error(str(paths[dataset]), None, *problem)


def _policy_error(error: ValidationError, document: Document) -> PolicyError:
    """Say every problem with its line; the first one's place becomes the details."""
    problems = sorted(
        (document.line_of(path), _locate(path, message), hint)
        for path, message, hint in map(_explain, error.errors(include_url=False))
        # What follows from another problem, which is reported, has no words.
        if message
    )
    errors = [policy_error(document.file, *problem) for problem in problems]
    text = "\n".join(problem.message for problem in errors)
    return PolicyError(text, **errors[0].details)


def _locate(path: KeyPath, message: str) -> str:
    name = next((part for part in reversed(path) if isinstance(part, str)), "")
    # "budget.epsilon must lie in …" rather than "budget.epsilon: epsilon must …".
    if name and message.startswith(f"{name} "):
        return f"{key_text(path)}{message.removeprefix(name)}"
    return f"{key_text(path)}: {message}" if path else message


def _explain(details: ErrorDetails) -> tuple[KeyPath, str, str]:
    """Return where a problem is, what is wrong and what to do next."""
    path, kind, value = tuple(details["loc"]), details["type"], details["input"]
    if kind == PROBLEM and "ctx" in details:
        return path, details["ctx"]["message"], details["ctx"]["hint"]
    if kind == "default_factory_not_called":
        return path, "", ""
    fields = _fields_around(path)
    name = str(path[-1]) if path else ""
    if kind == "extra_forbidden":
        hint = did_you_mean(name, fields)
        if len(path) > 1 and name in Policy.model_fields:
            hint = "Write it at the top of the policy."
        return path, "this field is unknown.", hint
    example = _example(name, fields.get(name))
    if kind == "missing":
        return path, "this field is missing.", f"Add it{example}."
    expected = _EXPECTED.get(kind)
    wrong = f"should be {expected}" if expected else details["msg"]
    message = f"{wrong.removeprefix('Input ')}, got {shorten(value)}."
    return path, message, f"Write it{example}." if example else "Correct the value."


def _fields_around(path: KeyPath) -> Mapping[str, FieldInfo]:
    """Return the fields of the mapping that a place belongs to."""
    # A flow's name stands between `flows` and the fields of its share.
    inside = 2 if path[:1] == ("flows",) else 1
    if len(path) <= inside:
        return Policy.model_fields
    field = Policy.model_fields[str(path[0])].annotation
    parts = (getattr(part, "model_fields", None) for part in (field, *get_args(field)))
    return next(filter(None, parts), {})


def _example(name: str, field: FieldInfo | None) -> str:
    if field is None or not field.examples:
        return ""
    value = field.examples[0]
    bare = isinstance(value, str) and not NUMBER.fullmatch(value)
    text = value if bare else json.dumps(value)
    return f", for example `{name}: {text}`"
