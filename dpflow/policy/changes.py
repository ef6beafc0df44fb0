"""What an edit of a policy does to its guarantee: tighter, looser, or another one.

Where no share is reserved, no guarantee of the dataset rests on the flows that may use
it, nor on their shares: such a change is `access`.

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

from dpflow.accounting import make_filter
from dpflow.accounting.rules.tightening import continues, tighten_filter
from dpflow.exceptions import InvalidCost
from dpflow.policy.model import Policy
from dpflow.policy.pinned import differing, value_text
from dpflow.policy.reserved import with_derived_numbers
from dpflow.policy.strict_yaml import KeyPath, key_text
from dpflow.rounding import number_from_text

Verdict = Literal["tighter", "looser", "access", "other", "neutral"]
Copy = Mapping[str, Any]


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
        ledger: What `Policy.to_declared` returned for the copy that governs.
        file: The same for the edited policy.
        charged_flows: Flows that have charged something in the term; None if that
            is unknown, which counts as all.
    """
    result: list[Change] = []
    flows = [*ledger["flows"].values(), *file["flows"].values()]
    is_reserved = any(share.get("reserved") for share in flows)
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
        elif field == "other_flows":
            result.append(_other_flows(old, new, is_reserved=is_reserved))
        elif field != "flows":
            free = field == "about" or (field == "source" and old is None)
            verdict: Verdict = "neutral" if free else "other"
            for difference in differing(old, new, field):
                result.append(_change(*difference, verdict))
    result += _flows(ledger, file, charged_flows, is_reserved=is_reserved)
    return tuple(sorted(result, key=lambda change: change.field))


def overall(changes: Collection[Change]) -> Verdict | Literal["same"]:
    """Return what all changes together do to the guarantee; access does nothing."""
    verdicts: set[Verdict] = {change.verdict for change in changes}
    verdicts.discard("neutral")
    if len(verdicts) > 1:
        verdicts.discard("access")
    if len(verdicts) == 1:
        return verdicts.pop()
    if verdicts:
        return "other"
    return "neutral" if changes else "same"


def tighten_pins(pinned: Copy, policy: Policy) -> dict[str, Any]:
    """Return the pinned copy of a tightened policy, for tallies that stay.

    Every number that prices a step stays as it was fixed; thresholds and halts fall,
    and those of shares may rise.

    Raises:
        InvalidCost: If a filter cannot be lowered in place, or a share cannot go on.
    """
    file, fixed = policy.to_pinned(), {}
    for name, share in file["flows"].items():
        before = {**pinned, "filter": pinned.get("each")}
        before = fixed[name] = pinned["flows"].get(name, before)
        if before["filter"] and share["epsilon"] is not None:
            share["filter"] = _lower(before["filter"], share, is_share=True)
        share["odometer"] = before["odometer"]
    if "whole" in file:
        file["whole"] = _lower(pinned["whole"], file["lifetime"])
    file["filter"] = _lower(pinned["filter"], file["budget"])
    result = with_derived_numbers(file | {"odometer": pinned["odometer"]})
    for name, share in result["flows"].items():
        filters = [copy["filter"] for copy in (share, fixed[name]) if copy["filter"]]
        if len(filters) > 1 and not continues(*(make_filter(**f) for f in filters)):
            msg = f"the share of flow {name!r} would price steps in another way."
            raise InvalidCost(msg, name="share", value=name)
    return result


def _lower(fixed: Copy, budget: Copy, *, is_share: bool = False) -> Copy:
    numbers = {name: budget[name] for name in ("epsilon", "delta")}
    if is_share:
        fixed = {name: value for name, value in fixed.items() if name != "thresholds"}
    if all(fixed[name] == text for name, text in numbers.items()):
        return fixed
    return tighten_filter(fixed, **numbers, is_share=is_share).parameters()


def _change(
    path: KeyPath, old: object, new: object, verdict: Verdict, why: str = ""
) -> Change:
    return Change(key_text(path), value_text(old), value_text(new), verdict, why)


def _numbers(old: Any, new: Any, *path: str) -> Iterator[Change]:
    """Judge limits, single or in a mapping; None is no limit."""
    for key_path, was, now in differing(old, new, *path):
        lower = was is None
        if was is not None and now is not None:
            lower = number_from_text(now.strip("%")) < number_from_text(was.strip("%"))
        yield _change(key_path, was, now, "tighter" if lower else "looser")


def _other_flows(old: Any, new: Any, *, is_reserved: bool) -> Change:
    """Judge the access of flows without a name."""
    verdict: Verdict = "tighter" if new == "refuse" else "looser"
    if old == "allow" and isinstance(new, Mapping):
        why = "what each flow was charged so far was not counted"
        return _change(("other_flows",), old, new, "other", why)
    return _change(("other_flows",), old, new, verdict if is_reserved else "access")


def _flows(
    ledger: Copy, file: Copy, charged: Collection[str] | None, *, is_reserved: bool
) -> Iterator[Change]:
    """Judge the flows that may use the dataset, and their shares."""
    names = ledger["flows"].keys() | file["flows"].keys() | {*(charged or ())}
    for name in sorted(names):
        path = ("flows", name)
        old, new = ledger["flows"].get(name), file["flows"].get(name)
        before, after = _limit(ledger, name), _limit(file, name)
        is_charged = before is not None if charged is None else name in charged
        reserved = [bool(share and share.get("reserved")) for share in (old, new)]
        if reserved[0] != reserved[1]:
            yield _judge_reserved((*path, "reserved"), *reserved, file=file)
        if after and not before and is_charged:
            why = "a tally of its own would forget what it was charged without a share"
            yield _change(path, before, after, "other", why)
        elif old != new and (before is None or after is None):
            verdict: Verdict = "looser" if before is None else "tighter"
            yield _change(path, old, new, verdict if is_reserved else "access")
        elif old != new:
            limits = before, after, is_reserved
            changes = [*_share(path, old or {}, new or {}, limits, charged=is_charged)]
            same = _change(path, old, new, "neutral")
            yield from changes or ([same] if reserved[0] == reserved[1] else [])


def _limit(copy: Copy, flow: str) -> Copy | None:
    """Return the share of a flow: empty without one, None without access."""
    other = copy["other_flows"]
    share = copy["flows"].get(flow, other if isinstance(other, Mapping) else {})
    if flow not in copy["flows"] and other == "refuse":
        return None
    limits = {name: share.get(name) for name in ("epsilon", "delta", "share")}
    limits["share"] = limits["share"] or share.get("share_each")
    return {name: text for name, text in limits.items() if text is not None}


def _judge_reserved(path: KeyPath, old: bool, new: bool, *, file: Copy) -> Change:  # noqa: FBT001
    """Judge a share that is reserved from now on, or no longer."""
    verdict: Verdict = "other"
    why = "what all others used so far was not counted apart"
    if old and any(share.get("reserved") for share in file["flows"].values()):
        why = "all others could use up the shares that stay reserved"
    elif old:
        verdict, why = "neutral", "all others may use the rest of the share"
    return _change(path, old, new, verdict, why)


def _share(
    path: tuple[str, ...],
    old: Copy,
    new: Copy,
    limits: tuple[Copy | None, Copy | None, bool],
    *,
    charged: bool,
) -> Iterator[Change]:
    """Judge the share of a flow that may use the dataset before and after."""
    before, after, is_reserved = limits
    plans = old.get("plan"), new.get("plan")
    if is_reserved:
        yield from _numbers(before, after, *path)
    else:
        solved = charged and any(plans)
        why = "its planned noise is solved for its share" if solved else ""
        for change in differing(before, after, *path):
            yield _change(*change, "other" if solved else "access", why)
    # No guarantee rests on a plan, but its noise is solved for a whole term.
    why = "its runs are counted from the start of a term" if charged else ""
    for change in differing(plans[0], plans[1], *path, "plan"):
        yield _change(*change, "other" if charged else "neutral", why)
    halts = old.get("halt_at_epsilon"), new.get("halt_at_epsilon")
    yield from _numbers(halts[0], halts[1], *path, "halt_at_epsilon")
