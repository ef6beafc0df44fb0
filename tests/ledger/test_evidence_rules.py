"""What a bundle's verifier knows of preflights, grants and counted checkpoints.

Every forger here chains, sums and seals anew; only the one rule is broken.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dpflow.ledger.apply import Wish, apply_policy
from dpflow.ledger.carve import carve
from dpflow.ledger.evidence_verifier import Verifier, read_bundle
from dpflow.ledger.seals import seal

from dpflow.accounting.costs import ApproxDP
from dpflow.ledger import create_ledger
from dpflow.ledger.approval import Approval
from dpflow.ledger.audit.bundle import README, verifier_text, write_evidence
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.records import canonical, digest
from tests.ledger.preflights import RUN, drawn, held_run
from tests.ledger.support import granted, make_policy, new_ledger, url
from tests.ledger.test_evidence import (
    Files,
    chained,
    lines,
    resealed,
    resigned,
    rewritten,
)
from tests.ledger.test_verify import KEY as BYTES
from tests.ledger.test_verify import signed_thrice

KEY = BYTES.decode()
Rows = list[dict[str, Any]]
POLICY = make_policy(flows="{weekly: {epsilon: 1}}", other_flows="allow")
SOURCE = make_policy("s", source="warehouse", budget="{epsilon: 3}")
TAKER = make_policy(
    "t",
    source="warehouse",
    budget="{epsilon: 1}",
    lifetime="{epsilon: 1}",
)


def bundle_of(ledger: Any, folder: Path, key: str = "") -> Files:
    """Write a bundle of a ledger and return its files."""
    place = write_evidence(ledger, folder / "b.zip", key=key.encode() or None)
    return read_bundle(place)


def bad(files: Files, key: str = "") -> list[str]:
    """Return what a verifier finds bad in a bundle."""
    verifier = Verifier(files, key.encode() or None)
    verifier.run()
    return verifier.bad


@pytest.fixture(scope="module")
def run_held(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Return the bundle of a run that held 0.3 and drew 0.1 twice."""
    folder = tmp_path_factory.mktemp("run")
    ledger = new_ledger(folder)
    here: dict[str, Any] = {"policies": [POLICY], "flow": "weekly"}
    held_run(ledger, ["0.1"] * 3, **here)
    for _ in range(2):
        ledger.settle(drawn(ledger, **here).reservation)
    seal(ledger, RUN, outcome="completed")
    ledger.settle(granted(ledger, policies=[POLICY]))
    found = bundle_of(ledger, folder)
    ledger.close()
    assert bad(found) == []
    return found


def test_a_flow_that_was_taken_off_keeps_its_accounts(tmp_path: Path) -> None:
    """They are no term's any more; those of other flows are compared with theirs."""
    ledger = new_ledger(tmp_path)
    flows = "{weekly: {epsilon: 0.5}, daily: {epsilon: 0.5}}"
    for flow in ("weekly", "daily"):
        ledger.settle(granted(ledger, policies=[make_policy(flows=flows)], flow=flow))
    fewer = make_policy(flows="{daily: {epsilon: 0.5}}")
    applied = apply_policy(ledger, fewer, Wish(), Approval(principal="ann"))
    assert applied.action == "tighten"
    files = bundle_of(ledger, tmp_path)
    ledger.close()
    assert bad(files) == []
    (term,) = json.loads(files["policies.json"])
    opened = term["pinned"].replace('"other_flows":"refuse"', '"other_flows":"allow"')
    pins = [{**term, "pinned": opened, "policy_hash": digest(opened)}]
    changed = resealed({**files, "policies.json": json.dumps(pins).encode()})
    assert "its gate is not its term's" in str(bad(changed))


def forged(files: Files, change: Callable[[Rows], Rows | None]) -> Files:
    """Change the dataset's account; count, sum, chain and seal all of it anew."""

    def forge(rows: Rows) -> Rows:
        ours = [row for row in rows if row["account"] == "a#1"]
        others = [row for row in rows if row["account"] != "a#1"]
        ours = change(ours) or ours
        summed(ours)
        chained(ours)
        return [*ours, *others]

    return resealed(lines(files, forge))


def summed(rows: Rows) -> None:
    """Number the entries and write the sums that their amounts give."""
    settled = held = 0
    rests: dict[str, int] = {}
    for number, row in enumerate(rows, 1):
        kind, name, amounts = row["kind"], row["reservation"], json.loads(row["amount"])
        amount = amounts[0]
        if kind == "reserve":
            rests[name] = amount
            held += amount
        elif kind == "draw":
            rests[name] = rests.get(name, 0) - amount
            held -= amount
        elif kind in ("settle", "forfeit", "void", "seal"):
            held -= rests.pop(name, amount) if kind == "settle" else amount
            settled += amount if kind in ("settle", "forfeit") else 0
        rest = [0] * (len(amounts) - 1)
        row["seq"] = number
        row["settled_after"] = canonical([settled, *rest])
        row["held_after"] = canonical([max(held, 0), *rest])


def nth(rows: Rows, kind: str, number: int = 0) -> dict[str, Any]:
    """Return an entry of a kind by its place among them."""
    return [row for row in rows if row["kind"] == kind][number]


def scaled(row: dict[str, Any], above: int, below: int = 1) -> None:
    """Multiply an entry's amount."""
    amounts = json.loads(row["amount"])
    row["amount"] = canonical([each * above // below for each in amounts])


def said(row: dict[str, Any], **facts: Any) -> None:
    """Change the body of an entry; None takes a fact out."""
    body = {**json.loads(row["body"]), **facts}
    row["body"] = canonical({k: v for k, v in body.items() if v is not None})


def without(rows: Rows, *numbers: int) -> Rows:
    """Take entries out by their places, counted from 1."""
    return [row for place, row in enumerate(rows, 1) if place not in numbers]


def moved(rows: Rows, old: int, new: int) -> Rows:
    """Put an entry elsewhere."""
    rest = without(rows, old)
    return [*rest[: new - 1], rows[old - 1], *rest[new - 1 :]]


def early_seal(rows: Rows) -> Rows:
    """Seal before the second draw, and return what was undrawn then."""
    scaled(nth(rows, "seal"), 2)
    return moved(rows, 9, 6)


def renamed(rows: Rows) -> None:
    """Give the second step the id of the first, which has ended."""
    name = nth(rows, "reserve", 1)["reservation"]
    for each in (nth(rows, "reserve", 2), nth(rows, "settle", 1)):
        each["reservation"] = name
    said(nth(rows, "draw", 1), **{"for": name})


def with_kind(row: dict[str, Any], kind: str) -> None:
    """Call an entry something else."""
    row["kind"] = kind


#: 1 open, 2 reserve, 3 draw, 4 reserve, 5 settle, 6 draw, 7 reserve, 8 settle, 9 seal,
#: 10 reserve, 11 settle.
BROKEN: dict[str, tuple[Callable[[Rows], Rows | None], str]] = {
    "too much is drawn": (
        lambda r: scaled(nth(r, "reserve"), 1, 3),
        "entry 6: it draws more than its preflight has left",
    ),
    "a draw without a step": (
        lambda r: without(r, 4, 5),
        "entry 4: the draw before it is not held by its step",
    ),
    "a draw for a dearer step": (
        lambda r: [scaled(nth(r, "reserve", 1), 2), scaled(nth(r, "settle"), 2)] and r,
        "entry 4: the draw before it is not held by its step",
    ),
    "a draw for another step": (
        lambda r: said(nth(r, "draw"), **{"for": "0" * 32}),
        "entry 4: the draw before it is not held by its step",
    ),
    "a step of another preflight": (
        lambda r: said(nth(r, "reserve", 1), preflight="0" * 32),
        "entry 4: the draw before it is not held by its step",
    ),
    "a step that nobody drew for": (
        lambda r: [scaled(nth(r, "seal"), 2)] and without(r, 3),
        "entry 3: it says that it was drawn, and there is no draw",
    ),
    "a draw after the seal": (early_seal, "entry 7: it ends or draws from a reserv"),
    "a seal returns too much": (
        lambda r: scaled(nth(r, "seal"), 2),
        "entry 9: it ends a reservation with another amount",
    ),
    "a seal returns too little": (
        lambda r: scaled(nth(r, "seal"), 1, 2),
        "entry 9: it ends a reservation with another amount",
    ),
    "a second seal": (
        lambda r: [*r, {**nth(r, "seal")}],
        "entry 12: it ends or draws from a reservation that is not open",
    ),
    "a draw from a step": (
        lambda r: said(nth(r, "reserve"), covers=None),
        "entry 3: it draws from a reservation that is no preflight",
    ),
    "a step that is sealed": (
        lambda r: with_kind(nth(r, "settle", 2), "seal"),
        "entry 11: a reservation that is no preflight does not end with a seal",
    ),
    "a preflight that is settled": (
        lambda r: with_kind(nth(r, "seal"), "settle"),
        "entry 9: a preflight does not end with a settle",
    ),
    "a preflight that is voided after a draw": (
        lambda r: with_kind(nth(r, "seal"), "void"),
        "entry 9: it voids a preflight of which something was drawn",
    ),
    "an id that is used again": (renamed, "entry 7: its reservation was made before"),
    "a draw at the end": (lambda r: r[:6], "entry 6: no step holds what it draws"),
    "a charge in the opening": (
        lambda r: scaled_opening(nth(r, "open")),
        "entry 1: an account is opened with nothing in it",
    ),
}


def scaled_opening(row: dict[str, Any]) -> None:
    """Let an account begin with something."""
    row["amount"] = canonical([1, *json.loads(row["amount"])[1:]])


@pytest.mark.parametrize("name", BROKEN)
def test_each_rule_of_preflights_is_followed(run_held, name):
    """The first thing found is the rule that is broken."""
    change, message = BROKEN[name]
    found = [each for each in bad(forged(run_held, change)) if "'a#1'" in each]
    assert found
    assert message in found[0]


def test_what_is_forged_without_breaking_a_rule_is_good(run_held):
    """The control: nothing above is found because of how the forger works."""
    assert bad(forged(run_held, lambda _: None)) == []


def test_a_reservation_ends_alike_everywhere(run_held):
    """Sealed on the dataset and forfeited on the flow's share is found."""
    changed = forged(run_held, lambda r: with_kind(nth(r, "seal"), "forfeit"))
    (found,) = bad(changed)
    assert "ends differently: forfeit and seal" in found
    changed = forged(run_held, lambda r: without(r, 9))
    (found,) = bad(changed)
    assert "ends differently: open and seal" in found


# Grants


@pytest.fixture
def given(tmp_path: Path) -> tuple[Files, Files]:
    """Return the bundles of a ledger that gave a grant, and of the one that took it."""
    giver = create_ledger(url(tmp_path / "giver.db"), witness=str(tmp_path / "w"))
    taker = create_ledger(url(tmp_path / "taker.db"), witness=str(tmp_path / "w"))
    granted(giver, policies=[SOURCE])
    part = ApproxDP(epsilon=1, delta=0)
    grant, _ = carve(giver, SOURCE, part, taker=taker.id, because="test")
    wish = Wish(because="given", new_term=True, grant=grant)
    apply_policy(taker, TAKER, wish, Approval(principal="ann"))
    taker.settle(granted(taker, policies=[TAKER]))
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    found = [
        bundle_of(ledger, folder)
        for ledger, folder in zip((giver, taker), folders, strict=True)
    ]
    giver.close()
    taker.close()
    assert [bad(files) for files in found] == [[], []]
    return found[0], found[1]


def regranted(kind: str, **facts: Any) -> Callable[[Rows], None]:
    """Change a grant where the journal tells of it."""

    def change(rows: Rows) -> None:
        row = nth(rows, kind)
        body = json.loads(row["body"])
        said(row, grant={**body["grant"], **facts})
        chained(rows)

    return change


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"taker": "0" * 32}, "is for ledger 0000"),
        ({"environment": "staging"}, "is for the environment 'staging'"),
        ({"unit": "device"}, "is for another guarantee"),
        ({"relation": "replace-one"}, "is for another guarantee"),
        ({"source": "another"}, "is for another guarantee"),
        ({"epsilon": "0.5"}, "is below its lifetime"),
    ],
)
def test_a_grant_that_was_taken_is_checked(given, facts, message):
    """For whom it is, for which guarantee, and how much it gives."""
    files = resealed(lines(given[1], regranted("open", **facts)))
    (found,) = bad(files)
    assert message in found
    assert "'t#1'" in found


def test_a_grant_that_is_larger_is_good(given):
    """The control: more was given than the term promises."""
    assert bad(resealed(lines(given[1], regranted("open", epsilon="2")))) == []


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"giver": "0" * 32}, "is of ledger 0000"),
        ({"because": "nothing"}, "is not what its digest tells"),
        ({"taker": "0" * 32}, "is not what its digest tells"),
        ({"epsilon": "2"}, "is not what its digest tells"),
    ],
)
def test_a_grant_that_was_given_is_what_was_charged(given, facts, message):
    """The entry that charged it has its digest."""
    (found,) = bad(resealed(lines(given[0], regranted("prior", **facts))))
    assert message in found


def test_a_larger_grant_with_a_new_digest_is_found_too(given):
    """For the entry says at which cost it was charged."""

    def change(rows: Rows) -> None:
        from dpflow.ledger.grants import grant_from_facts

        row = nth(rows, "prior")
        grant = {**json.loads(row["body"])["grant"], "epsilon": "2"}
        told = grant_from_facts(grant).digest
        said(row, grant=grant, evidence_sha256=told)
        chained(rows)

    (found,) = bad(resealed(lines(given[0], change)))
    assert "is not what was charged for it" in found


# Checkpoints


@pytest.fixture
def signed(tmp_path: Path) -> Files:
    """Return the bundle of an account that was signed three times."""
    ledger = new_ledger(tmp_path)
    granted(ledger)
    signed_thrice(ledger, Path(ledger.place))
    found = bundle_of(ledger, tmp_path, KEY)
    ledger.close()
    assert bad(found, KEY) == []
    return found


def points(files: Files, change: Callable[[Rows], Any]) -> Files:
    """Change the checkpoints and sign the manifest anew."""
    return resigned(resealed(rewritten(files, "checkpoints.json", change)), KEY)


def own(rows: Rows) -> Rows:
    """Return the checkpoints of the account."""
    return [row for row in rows if row["account"] == "a#1"]


def test_a_checkpoint_that_was_taken_out_is_found(signed):
    """With the key by the chain of signatures, and without it by the count."""

    def change(rows: Rows) -> None:
        rows.remove(own(rows)[1])

    files = points(signed, change)
    found = bad(files, KEY)
    assert any("forged, or signed with another key" in each for each in found)
    found = bad(files)
    assert [each for each in found if "are not all there" in each] == found
    assert len(found) == 1


def test_checkpoints_that_were_counted_anew_are_found(signed):
    """The count is in what is signed."""

    def change(rows: Rows) -> None:
        rows.remove(own(rows)[1])
        for number, row in enumerate(own(rows), 1):
            row["number"] = number

    files = points(signed, change)
    assert bad(files) == []
    (found,) = bad(files, KEY)
    assert "forged, or signed with another key" in found


def old_style(files: Files, first: int) -> Callable[[Rows], None]:
    """Sign the first checkpoints as they were before they were counted."""
    ledger = json.loads(files["manifest.json"])["ledger"]

    def change(rows: Rows) -> None:
        previous = ""
        for place, row in enumerate(own(rows), 1):
            old = place <= first
            chain = [] if old else [place, previous]
            text = canonical([ledger, "a#1", row["seq"], row["hash"], *chain])
            row["number"] = None if old else place
            row["signature"] = hmac.new(
                KEY.encode(), text.encode(), "sha256"
            ).hexdigest()
            previous = row["signature"]

    return change


@pytest.mark.parametrize("first", [1, 2, 3])
def test_older_checkpoints_were_not_counted(signed, first):
    """They are over less, and the next one counts and chains them."""
    files = points(signed, old_style(signed, first))
    assert (bad(files, KEY), bad(files)) == ([], [])

    def last_uncounted(rows: Rows) -> None:
        old_style(signed, first)(rows)
        own(rows)[-1]["number"] = None

    if first < 3:
        found = bad(points(signed, last_uncounted), KEY)
        assert any("checkpoint of entry 8" in each for each in found)


def test_the_ledger_and_the_verifier_agree_on_old_checkpoints(signed):
    """The control of the helper: it signs as the ledger does."""
    before = json.loads(signed["checkpoints.json"])
    after = json.loads(points(signed, old_style(signed, 0))["checkpoints.json"])
    assert own(after) == own(before)


# The bundle


def test_the_verifier_is_one_file_without_dpflow(signed):
    """And the bundle's README says what the signatures are over."""
    text = verifier_text()
    assert "import dpflow" not in text
    assert "from dpflow" not in text
    assert signed["verify.py"].decode() == text
    readme = signed[README].decode()
    assert "[ledger, account, seq, hash, number, previous]" in readme
    assert "HMAC-SHA256" in readme


def test_verify_and_the_verifier_know_the_same_kinds(tmp_path):
    """A bundle of a ledger that verifies is good."""
    ledger = new_ledger(tmp_path)
    held_run(ledger, ["0.1"] * 2)
    open_step = drawn(ledger)
    assert open_step.reservation
    assert verify(ledger).bad == []
    assert bad(bundle_of(ledger, tmp_path)) == []
    ledger.close()
