"""What an edit of a policy does to its guarantee: tighter, looser, or another one.

The judgement compares what was declared. A change is `tighter` if all that was
promised of each account goes on to hold, and nothing new is promised of a tally that
did not see everything: then the tallies may stay. It is `looser` if more would be
admitted, and `other` if the two guarantees cannot be compared, as with another theorem
or privacy unit. `neutral` changes touch no guarantee. An unknown field is `other`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dpflow.accounting.rules.tightening import tightened_filter
from dpflow.policy.model import Policy
from dpflow.policy.pinned import differing, value_text
from dpflow.policy.reserved import with_derived_numbers
from dpflow.policy.strict_yaml import KeyPath, key_text
from dpflow.rounding import number_from_text

Verdict = Literal["tighter", "looser", "other", "neutral"]
Copy = Mapping[str, Any]

_NO_SHARE: Copy = {"epsilon": None, "delta": None, "halt_at_epsilon": None}


@dataclass(frozen=True, slots=True)
class Change:
    """One field that differs.

    Attributes:
        field: Its place, such as `flows.weekly-report.epsilon`.
        ledger: What the ledger's copy says, as text.
        file: What the policy file says, as text.
        verdict: What the change does to the guarantee.
        why: Why it is judged so, where the verdict alone would surprise.
    """

    field: str
    ledger: str
    file: str
    verdict: Verdict
    why: str = ""

    @property
    def line(self) -> str:
        """The change in one line."""
        return f"{self.field}: ledger {self.ledger}, file {self.file}"


def judge(
    ledger: Copy, file: Copy, *, charged_flows: Collection[str] | None = None
) -> tuple[Change, ...]:
    """Judge each field in which two declared copies differ.

    Args:
        ledger: What `Policy.declared` returned for the copy that governs.
        file: The same for the edited policy.
        charged_flows: Flows that have charged something in the term; None if that
            is unknown, which counts as all.
    """
    result: list[Change] = []
    parts, shared = file.get("partition"), "window" in file and "lifetime" not in file
    for field in sorted(ledger.keys() | file.keys()):
        old, new = ledger.get(field), file.get(field)
        if old == new:
            continue
        if field == "lifetime" and old is None and parts:
            why = "what all partitions were charged so far would be forgotten"
            result.append(_change((field,), old, new, "other", why))
        elif field == "budget" and parts and not shared:
            why = "each part keeps the budget that it was opened with"
            result.append(_change((field,), old, new, "other", why))
        elif field in ("budget", "lifetime"):
            result += _numbers(old, new, field)
        elif field == "flows":
            result += _flows(ledger, file, charged_flows)
        elif field == "other_flows":
            verdict: Verdict = "tighter" if new == "refuse" else "looser"
            result.append(_change((field,), old, new, verdict))
        else:
            free = field == "about" or (field == "source" and old is None)
            verdict = "neutral" if free else "other"
            result += [_change(*each, verdict) for each in differing(old, new, field)]
    return tuple(result)


def overall(changes: Collection[Change]) -> Verdict | Literal["same"]:
    """Return what all changes together do to the guarantee."""
    verdicts = {change.verdict for change in changes} - {"neutral"}
    if len(verdicts) == 1:
        return verdicts.pop()
    if verdicts:
        return "other"
    return "neutral" if changes else "same"


def tightened_pins(pinned: Copy, policy: Policy) -> dict[str, Any]:
    """Return the pinned copy of a tightened policy, for tallies that stay.

    Every number that prices a step stays as it was fixed; thresholds and halts fall.

    Raises:
        InvalidCost: If a filter cannot be lowered in place.
    """
    file = policy.pinned()
    for name, share in file["flows"].items():
        before = pinned["flows"].get(name, {**pinned, "filter": None})
        if before["filter"] and share["epsilon"] is not None:
            share["filter"] = _lowered(before["filter"], share)
        share["odometer"] = before["odometer"]
    if "whole" in file:
        file["whole"] = _lowered(pinned["whole"], file["lifetime"])
    file["filter"] = _lowered(pinned["filter"], file["budget"])
    return with_derived_numbers(file | {"odometer": pinned["odometer"]})


def _lowered(fixed: Copy, budget: Copy) -> Copy:
    numbers = {name: budget[name] for name in ("epsilon", "delta")}
    if all(fixed[name] == text for name, text in numbers.items()):
        return fixed
    return tightened_filter(fixed, **numbers).parameters()


def _change(
    path: KeyPath, old: object, new: object, verdict: Verdict, why: str = ""
) -> Change:
    return Change(key_text(path), value_text(old), value_text(new), verdict, why)


def _numbers(old: Any, new: Any, *path: str) -> Iterator[Change]:
    """Judge limits, single or in a mapping; None is no limit."""
    for place, was, now in differing(old, new, *path):
        lower = was is None
        if was is not None and now is not None:
            lower = number_from_text(now) < number_from_text(was)
        yield _change(place, was, now, "tighter" if lower else "looser")


def _flows(
    ledger: Copy, file: Copy, charged: Collection[str] | None
) -> Iterator[Change]:
    for name in sorted(ledger["flows"].keys() | file["flows"].keys()):
        path = ("flows", name)
        old, new = ledger["flows"].get(name), file["flows"].get(name)
        reserved = [bool(share and share.get("reserved")) for share in (old, new)]
        if reserved[0] != reserved[1]:
            yield _reserved((*path, "reserved"), *reserved, file=file)
        if old is None and ledger["other_flows"] == "refuse":
            yield _change(path, old, new, "looser", "it could not use the dataset")
        elif new is None and file["other_flows"] == "refuse":
            yield _change(path, old, new, "tighter", "it may not use it any more")
        else:
            unknown = charged is None or name in charged
            yield from _share(path, old, new, charged=unknown)


def _reserved(path: KeyPath, old: bool, new: bool, *, file: Copy) -> Change:  # noqa: FBT001
    """Judge a share that is reserved from now on, or no longer."""
    verdict: Verdict = "other"
    why = "what all others used so far was not counted apart"
    if old and any(share.get("reserved") for share in file["flows"].values()):
        why = "all others could use up the shares that stay reserved"
    elif old:
        verdict, why = "neutral", "all others may use the rest of the share"
    return _change(path, old, new, verdict, why)


def _share(
    path: tuple[str, ...], old: Copy | None, new: Copy | None, *, charged: bool
) -> Iterator[Change]:
    """Judge the share of a flow that may use the dataset before and after."""
    before, after = (
        {k: v for k, v in (share or _NO_SHARE).items() if k != "reserved"}
        for share in (old, new)
    )
    if charged and before["epsilon"] is None and after["epsilon"] is not None:
        why = "it was charged without a share, which a tally of its own would forget"
        yield _change((*path, "epsilon"), None, after["epsilon"], "other", why)
        del before["epsilon"], before["delta"], after["epsilon"], after["delta"]
    if before == after == _NO_SHARE:
        yield _change(path, old, new, "neutral")
    # No guarantee rests on a plan, but its noise is solved for a whole term.
    verdict: Verdict = "other" if charged else "neutral"
    why = "its runs are counted from the start of a term" if charged else ""
    plans = before.pop("plan", None), after.pop("plan", None)
    for place, was, now in differing(*plans, *path, "plan"):
        yield _change(place, was, now, verdict, why)
    yield from _numbers(before, after, *path)
