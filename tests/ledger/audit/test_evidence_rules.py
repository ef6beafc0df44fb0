"""What a bundle's verifier knows of preflights, grants and counted checkpoints.

Every forger here chains, sums and seals anew; only the one rule is broken.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dpflow.ledger.grants import grant_from_facts

from dpflow.accounting.costs.notions import ApproxDP
from dpflow.ledger import create_ledger
from dpflow.ledger.audit.bundle import README, verifier_files, write_evidence
from dpflow.ledger.audit.pinned import is_pinned
from dpflow.ledger.audit.verifier import Verifier, read_bundle
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.decision.announced import gates_text
from dpflow.ledger.ed25519 import Sign
from dpflow.ledger.entry import canonical
from dpflow.ledger.keys import LedgerKey
from dpflow.ledger.office import apply_policy, carve
from dpflow.ledger.office_records import Wish
from tests.ledger.audit.books import KEY, signed_thrice
from tests.ledger.audit.bundles import (
    Files,
    chained,
    in_point,
    lines,
    resealed,
    resigned,
)
from tests.ledger.preflights import RUN, drawn, held_run
from tests.ledger.support import granted, make_policy, new_ledger, url

Rows = list[dict[str, Any]]
POLICY = make_policy(flows="{weekly: {epsilon: 1}}", other_flows="allow")
SOURCE = make_policy("s", source="warehouse", budget="{epsilon: 3}")
TAKER = make_policy(
    "t",
    source="warehouse",
    budget="{epsilon: 1}",
    lifetime="{epsilon: 1}",
)


def bundle_of(ledger: Any, folder: Path, sign: Sign | None = None) -> Files:
    """Write a bundle of a ledger and return its files."""
    place = write_evidence(ledger, folder / "b.zip", sign=sign)
    return read_bundle(place)


def bad(files: Files, key: LedgerKey | None = None) -> list[str]:
    """Return what a verifier finds bad in a bundle."""
    verifier = Verifier(files, key and key.public)
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
    ledger.seal(RUN, outcome="completed")
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
    applied = apply_policy(ledger, fewer, Wish())
    assert applied.action == "tighten"
    files = bundle_of(ledger, tmp_path)
    ledger.close()
    assert bad(files) == []

    def shared(rows: Rows) -> None:
        row = nth(rows, "tighten")
        term = json.loads(row["body"])["term"]
        term["gates"]["flow/daily"] = term["gates"]["dataset"]
        said(row, term=term)
        chained(rows)

    found = bad(resealed(lines(files, shared)))
    assert "gate 'flow/daily' was loosened in place" in str(found)


def forged(files: Files, change: Callable[[Rows], Rows | None]) -> Files:
    """Change the dataset's journal; count, sum, chain and seal all of it anew."""

    def forge(rows: Rows) -> Rows:
        rows = change(rows) or rows
        summed(rows)
        chained(rows)
        return rows

    return resealed(lines(files, forge))


def summed(rows: Rows) -> None:
    """Number the entries and write the sums that their amounts give."""
    sums: dict[str, tuple[int, int]] = {}
    rests: dict[tuple[str, str], int] = {}
    for number, row in enumerate(rows, 1):
        row["number"] = number
        body, postings = json.loads(row["body"]), json.loads(row["postings"])
        for account, three in postings.items():
            settled, held = sums.get(account, (0, 0))
            kind, amount, place = row["kind"], three[0][0], (row["charge"], account)
            if kind == "reserve":
                rests[place] = amount
                preflight = body.get("preflight")
                if preflight is None:
                    held += amount
                else:
                    whole = (preflight["id"], account)
                    rests[whole] = rests.get(whole, 0) - amount
            elif kind in ("settle", "forfeit", "void", "seal"):
                held -= rests.pop(place, amount)
                settled += amount if kind in ("settle", "forfeit") else 0
            sums[account] = settled, max(held, 0)
            rest = [0] * (len(three[0]) - 1)
            three[1:] = [settled, *rest], [max(held, 0), *rest]
        row["postings"] = canonical(postings)


def nth(rows: Rows, kind: str, number: int = 0) -> dict[str, Any]:
    """Return an entry of a kind by its place among them."""
    return [row for row in rows if row["kind"] == kind][number]


def scaled(row: dict[str, Any], above: int, below: int = 1) -> None:
    """Multiply an entry's amounts."""
    postings = json.loads(row["postings"])
    for three in postings.values():
        three[0] = [each * above // below for each in three[0]]
    row["postings"] = canonical(postings)


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
    return moved(rows, 7, 5)


def renamed(rows: Rows) -> None:
    """Give the second step the id of the first, which has ended."""
    name = nth(rows, "reserve", 1)["charge"]
    for each in (nth(rows, "reserve", 2), nth(rows, "settle", 1)):
        each["charge"] = name


def with_kind(row: dict[str, Any], kind: str) -> None:
    """Call an entry something else."""
    row["kind"] = kind


#: 1 open, 2 reserve of the run, 3 reserve that draws, 4 settle, 5 reserve that draws,
#: 6 settle, 7 seal, 8 reserve, 9 settle.
BROKEN: dict[str, tuple[Callable[[Rows], Rows | None], str]] = {
    "too much is drawn": (
        lambda r: scaled(nth(r, "reserve"), 1, 3),
        "entry 5: it draws [",
    ),
    "a step of another preflight": (
        lambda r: said(nth(r, "reserve", 1), preflight={"id": "0" * 32}),
        "entry 3: there is no charge 0000",
    ),
    "a step that says it drew nothing": (
        lambda r: said(nth(r, "reserve", 1), preflight=None),
        "entry 7: it ends a charge that holds",
    ),
    "a draw after the seal": (early_seal, "is no open preflight"),
    "a seal returns too much": (
        lambda r: scaled(nth(r, "seal"), 2),
        "entry 7: it ends a charge that holds",
    ),
    "a seal returns too little": (
        lambda r: scaled(nth(r, "seal"), 1, 2),
        "entry 7: it ends a charge that holds",
    ),
    "a second seal": (
        lambda r: [*r, {**nth(r, "seal")}],
        "entry 10: ",
    ),
    "a draw from a step": (
        lambda r: said(nth(r, "reserve"), covers=None),
        "is no open preflight",
    ),
    "a step that is sealed": (
        lambda r: with_kind(nth(r, "settle", 2), "seal"),
        "entry 9: a seal is no end of charge",
    ),
    "a preflight that is settled": (
        lambda r: with_kind(nth(r, "seal"), "settle"),
        "entry 7: a settle is no end of charge",
    ),
    "a preflight that is voided after a draw": (
        lambda r: with_kind(nth(r, "seal"), "void"),
        "entry 7: it voids a preflight of which something was drawn",
    ),
    "an id that is used again": (renamed, "was made before"),
    "a charge in the opening": (
        lambda r: nth(r, "open").update(postings=nth(r, "reserve")["postings"]),
        "entry 1: an entry of kind open posts nothing",
    ),
    "half of an end": (
        lambda r: half_of(nth(r, "settle")),
        "entry 4: it ends charge",
    ),
    "an account of another dataset": (
        lambda r: nth(r, "reserve").update(
            postings=nth(r, "reserve")["postings"].replace('"a#1"', '"c#1"')
        ),
        "belongs to another book",
    ),
}


def half_of(row: dict[str, Any]) -> None:
    """End a charge on one of its accounts only."""
    postings = json.loads(row["postings"])
    row["postings"] = canonical({"a#1": postings["a#1"]})


@pytest.mark.parametrize("name", BROKEN)
def test_each_rule_of_preflights_is_followed(run_held, name):
    """The first thing found is the rule that is broken."""
    change, message = BROKEN[name]
    found = [each for each in bad(forged(run_held, change)) if "'a'" in each]
    assert found
    assert message in found[0]


def test_what_is_forged_without_breaking_a_rule_is_good(run_held):
    """The control: nothing above is found because of how the forger works."""
    assert bad(forged(run_held, lambda _: None)) == []


def test_a_reservation_ends_alike_everywhere(tmp_path):
    """Settled on one dataset and open or forfeited on the other is found."""
    ledger = new_ledger(tmp_path)
    both = [make_policy("a"), make_policy("c")]
    ledger.settle(granted(ledger, policies=both))
    ledger.settle(granted(ledger, policies=both[:1]))
    files = bundle_of(ledger, tmp_path)
    ledger.close()
    assert bad(files) == []

    def other(rows: Rows) -> None:
        (end,) = [r for r in rows if (r["kind"], r["book"]) == ("settle", "c")]
        end["kind"] = "forfeit"
        chained(rows)

    def gone(rows: Rows) -> Rows:
        return [r for r in rows if (r["kind"], r["book"]) != ("settle", "c")]

    for change in (other, gone):
        found = bad(resealed(lines(files, change)))
        assert any("it stands alone" in each for each in found), found


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
    apply_policy(taker, TAKER, wish)
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
    assert "term 1 of dataset 't'" in found


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
    found = bundle_of(ledger, tmp_path, KEY.sign)
    ledger.close()
    assert bad(found, KEY) == []
    return found


def test_a_checkpoint_that_was_taken_out_is_found(signed):
    """With the key by the chain of signatures, and without it by the count."""

    def change(rows: Rows) -> None:
        nth(rows, "checkpoint", 1)["kind"] = "thaw"
        chained(rows)

    files = resigned(resealed(lines(signed, change)), "k")
    found = bad(files, KEY)
    assert any("forged, or signed with another key" in each for each in found)
    found = bad(files)
    assert any("are not all there" in each for each in found)


def test_checkpoints_that_were_counted_anew_are_found(signed):
    """The count is in what is signed."""

    def change(rows: Rows) -> None:
        nth(rows, "checkpoint", 0)["kind"] = "thaw"
        first, second = (nth(rows, "checkpoint", place) for place in (0, 1))
        for count, row in enumerate((first, second), 1):
            body = json.loads(row["body"])
            previous = "" if count == 1 else body["signed"]["previous"]
            body["signed"] |= {"count": count, "previous": previous}
            row["body"] = canonical(body)
        chained(rows)

    files = resigned(resealed(lines(signed, change)), "k")
    assert any("forged" in each for each in bad(files, KEY))


@pytest.mark.parametrize("fact", ["sums", "hash", "number", "signature"])
def test_what_a_checkpoint_says_is_signed(signed, fact):
    """Each part of it; the control is the bundle as it was."""
    told = {"sums": {}, "hash": "0" * 64, "number": 1, "signature": "0" * 128}
    change = lines(signed, lambda rows: in_point_of("a", rows, **{fact: told[fact]}))
    found = bad(resigned(resealed(change), "k"), KEY)
    assert any("forged, or signed with another key" in each for each in found)


def in_point_of(book: str, rows: Rows, **facts: Any) -> None:
    """Change the first checkpoint of a dataset."""
    mine = [{**row, "book": "shop"} for row in rows if row["book"] == book]
    in_point(mine, **facts)
    for row, changed in zip([r for r in rows if r["book"] == book], mine, strict=True):
        row.update(body=changed["body"])
    chained(rows)


# The bundle


def test_the_verifier_is_the_files_that_the_ledger_runs(signed):
    """They import nothing but Python; the README says what signatures are over."""
    shipped = verifier_files()
    for name, text in shipped.items():
        assert signed[name].decode() == text
        for line in text.splitlines():
            known = line.startswith("from dpflow.ledger.")
            if "import dpflow" in line or ("from dpflow" in line and not known):
                pytest.fail(f"{name}: {line}")
            if known:
                module = line.split()[1].replace(".", "/")
                assert f"{module}.py" in shipped
    assert "dpflow/ledger/journal.py" in shipped
    readme = signed[README].decode()
    assert "[ledger, dataset, number, hash, count, previous, sums]" in readme
    assert "openssl pkeyutl -verify" in readme


def test_verify_and_the_verifier_know_the_same_kinds(tmp_path):
    """A bundle of a ledger that verifies is good."""
    ledger = new_ledger(tmp_path)
    held_run(ledger, ["0.1"] * 2)
    open_step = drawn(ledger)
    assert open_step.reservation
    assert verify(ledger).bad == []
    assert bad(bundle_of(ledger, tmp_path)) == []
    ledger.close()


def test_a_gate_of_a_period_that_the_copy_lacks_is_not_pinned() -> None:
    """Every gate that a policy makes is; one with the filter's own rule is not."""
    pinned = POLICY.pinned()
    gates = gates_text(pinned)
    facts = {"pinned": pinned, "gates": gates | {"partition/week": gates["dataset"]}}
    assert all(is_pinned(facts, place) for place in gates)
    assert not is_pinned(facts, "partition/week")
    without = facts | {"gates": gates | {"flow/weekly": None}}
    assert not is_pinned(without, "flow/weekly")
