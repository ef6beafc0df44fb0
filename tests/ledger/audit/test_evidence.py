"""A bundle of evidence is verified without dpflow, and every edit of it is found."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dpflow import PureDP
from dpflow.exceptions import ConfigurationError, LedgerUnavailable
from dpflow.ledger import Ledger, open_ledger
from dpflow.ledger.audit.bundle import verifier_files, write_evidence
from dpflow.ledger.audit.verifier import read_bundle
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.entry import canonical
from dpflow.ledger.office import freeze, import_prior
from tests.ledger.audit.books import SHOP, STEP, fill
from tests.ledger.audit.bundles import (
    CANARY,
    KEY,
    Files,
    above,
    cheaper,
    check,
    check_here,
    cut,
    first,
    free,
    in_point,
    in_term,
    lines,
    packed,
    raised,
    resealed,
    resigned,
    rewritten,
    set_in,
    thawed_late,
    without_checkpoints,
)
from tests.ledger.support import BASIC, granted, make_ledger, new_ledger, read
from tests.signing import key_file


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a signed bundle of a ledger to which everything has happened."""
    folder = tmp_path_factory.mktemp("evidence")
    patch = pytest.MonkeyPatch()
    patch.setenv("DPFLOW_LEDGER_KEY", key_file(folder, "k"))
    ledger = new_ledger(folder)
    fill(ledger)
    ledger.settle(granted(ledger, "0.01", key="canary"), value=json.dumps(CANARY))
    freeze(ledger, "shop", who="ann", because="looked odd")
    assert verify(ledger, key=KEY).bad == []
    place = write_evidence(ledger, folder / "bundle.zip", sign=KEY.sign)
    ledger.close()
    patch.undo()
    return place


def test_a_good_bundle_is_verified(bundle, tmp_path):
    """It says what was checked, with the key and without."""
    code, text = check(bundle, tmp_path)
    assert code == 0, text
    assert "OK: all of this agrees" in text
    assert "signatures not checked: no key" in text
    code, text = check(bundle, tmp_path, signed=True)
    assert code == 0, text
    assert "signature of the manifest: agrees" in text
    assert "signatures checked" in text


def test_the_verifier_inside_runs_from_the_unpacked_folder(bundle, tmp_path):
    """As the README of the bundle says; it is the one of this dpflow."""
    with zipfile.ZipFile(bundle) as archive:
        archive.extractall(tmp_path)
    done = subprocess.run(
        [sys.executable, "-I", "-S", "verify.py", "--json"],
        cwd=tmp_path,
        env={},
        capture_output=True,
        text=True,
        check=False,
    )
    found = json.loads(done.stdout)
    assert (done.returncode, found["fine"], found["bad"]) == (0, True, [])
    checked = {each["account"]: each["checked"] for each in found["accounts"]}
    assert (checked["a#1"], checked["shop#1"]) == (8, 3)
    for name, text in verifier_files().items():
        assert (tmp_path / name).read_text("utf-8") == text
    assert "python -I verify.py" in (tmp_path / "README.txt").read_text("utf-8")


def test_no_value_of_a_release_is_inside(bundle):
    """Its digest is: the ledger keeps the value, the bundle does not."""
    content = b"".join(read_bundle(bundle).values()) + bundle.read_bytes()
    assert CANARY.encode() not in content
    digest = hashlib.sha256(json.dumps(CANARY).encode()).hexdigest()
    assert digest.encode() in content


def test_the_totals_are_the_ledgers(tmp_path):
    """An independent sum of the journal is what the ledger says."""
    ledger = new_ledger(tmp_path)
    fill(ledger)
    place = write_evidence(ledger, tmp_path / "b.zip")
    _, text = check(place, tmp_path / "empty", "--json")
    rows = read(tmp_path / "ledger.db", "SELECT id, settled, held FROM account")
    found = {each["account"]: each for each in json.loads(text)["accounts"]}
    for name, *sums in rows:
        assert [canonical(found[name][each]) for each in ("settled", "held")] == sums
    assert len(found) == len(rows) == 5


TAMPERED: dict[str, tuple[Callable[[Files], Files], str]] = {
    "a file is missing": (
        lambda f: {k: v for k, v in f.items() if k != "README.txt"},
        "file README.txt is missing",
    ),
    "a file was added": (lambda f: {**f, "x.txt": b"x"}, "not in the manifest"),
    "a file was changed": (lambda f: {**f, "README.txt": b""}, "not what the manifest"),
    "no manifest": (
        lambda f: {k: v for k, v in f.items() if k != "manifest.json"},
        "manifest cannot be read",
    ),
    "no JSON": (lambda f: {**f, "accounts.json": b"{"}, "rows cannot be read"),
    "an amount": (
        lambda f: lines(f, lambda r: set_in(first(r, "settle"), postings="{}")),
        "is not what was hashed",
    ),
    "an amount, without the sums": (
        lambda f: resealed(lines(f, free)),
        "it ends charge",
    ),
    "a body": (
        lambda f: lines(f, lambda r: set_in(first(r, "settle"), body="{}")),
        "is not what was hashed",
    ),
    "a writer": (
        lambda f: lines(f, lambda r: set_in(first(r, "void"), writer="eve@x")),
        "is not what was hashed",
    ),
    "an entry is gone": (
        lambda f: lines(f, lambda r: [e for e in r if e is not first(r, "void")]),
        "is missing or out of order",
    ),
    "an entry is doubled": (
        lambda f: lines(f, lambda r: [first(r, "open"), *r]),
        "is missing or out of order",
    ),
    "the entries are in another order": (
        lambda f: lines(f, lambda r: r[::-1]),
        "is missing or out of order",
    ),
    "the end is cut off": (lambda f: lines(f, cut), "its end is not its journal's"),
    "an amount, chained again": (
        lambda f: lines(f, cheaper),
        "its end is not its journal's",
    ),
    "a policy": (
        lambda f: resealed(lines(f, in_term(raised))),
        "its policy is not what was pinned",
    ),
    "a policy, hashed again": (
        lambda f: resealed(lines(f, in_term(lambda t: raised(t, hashed=True)))),
        "is not its policy's",
    ),
    "an account is listed twice": (
        lambda f: resealed(
            rewritten(f, "accounts.json", lambda d: d.insert(0, {**d[0]}))
        ),
        "an account is listed twice",
    ),
    "an account is gone": (
        lambda f: rewritten(f, "accounts.json", lambda d: d.pop()),
        "is not in all files",
    ),
    "a sum": (
        lambda f: rewritten(f, "accounts.json", lambda d: set_in(d[0], held="[9,9]")),
        "its sums is not its journal's",
    ),
    "a grant above the threshold": (
        lambda f: resealed(lines(f, in_term(above))),
        "the threshold was [1",
    ),
    "an overdraft": (
        lambda f: rewritten(f, "accounts.json", lambda d: set_in(d[0], overdrawn=1)),
        "its state is not its journal's",
    ),
    "a settlement for nothing that reports nothing": (
        lambda f: resealed(
            without_checkpoints(lines(f, lambda r: cheaper(r, explained=False)))
        ),
        "it ends a charge that holds",
    ),
    "a grant while frozen": (
        lambda f: resealed(lines(f, thawed_late)),
        "a step was granted while its dataset was frozen",
    ),
    "a checkpoint": (
        lambda f: resealed(lines(f, lambda r: in_point(r, hash="0" * 64))),
        "the journal holds something else",
    ),
    "a checkpoint's count": (
        lambda f: resealed(lines(f, lambda r: in_point(r, count=7))),
        "those before it are not all there",
    ),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_every_edit_is_found_without_the_key(bundle, tmp_path, name):
    """The verifier names it and exits with 1."""
    tamper, message = TAMPERED[name]
    files = read_bundle(bundle)
    changed = tamper(files)
    assert changed != files
    code, text = check_here(packed(changed, tmp_path / "b.zip"))
    assert code == 1, text
    assert message in text
    assert "OK" not in text


def test_a_bundle_that_was_only_packed_again_is_good(bundle, tmp_path):
    """Nothing above is found because of how the tests pack."""
    for number, change in enumerate(
        (dict, resealed, lambda f: lines(f, lambda _: None))
    ):
        place = packed(change(read_bundle(bundle)), tmp_path / f"{number}.zip")
        code, text = check_here(place)
        assert code == 0, text


@pytest.mark.parametrize(
    ("tamper", "message"),
    [
        (lambda f: resealed(without_checkpoints(lines(f, cheaper))), "not signed with"),
        (lambda f: resealed(without_checkpoints(lines(f, cut))), "not signed with"),
        (lambda f: resigned(resealed(lines(f, cut)), "x"), "not signed with"),
        (
            lambda f: {k: v for k, v in f.items() if k != "manifest.sig"},
            "the manifest is not signed",
        ),
        (
            lambda f: resigned(resealed(without_checkpoints(f)), "k"),
            "has no signed checkpoint",
        ),
        (
            lambda f: resigned(
                resealed(lines(f, lambda r: in_point(r, signature="0" * 128))),
                "k",
            ),
            "forged, or signed with another key",
        ),
    ],
)
def test_a_whole_rewrite_is_found_with_the_key(bundle, tmp_path, tamper, message):
    """Whoever chains, sums and seals everything again lacks the key."""
    place = packed(tamper(read_bundle(bundle)), tmp_path / "b.zip")
    code, text = check(place, tmp_path / "empty", signed=True)
    assert code == 1, text
    assert message in text


def test_what_only_the_key_finds_is_said_to_be_unchecked(bundle, tmp_path):
    """Without it, a whole rewrite passes: the verifier does not claim otherwise."""
    forged = resealed(without_checkpoints(lines(read_bundle(bundle), cheaper)))
    code, text = check_here(packed(forged, tmp_path / "b.zip"))
    assert code == 0, text
    assert "signature of the manifest: there, not checked: no key" in text


def test_an_earlier_bundle_tells_of_a_rewrite(bundle, tmp_path):
    """What was in it has to be in every later one."""
    files = read_bundle(bundle)
    good = check_here(bundle, "--earlier", str(bundle))
    assert good[0] == 0, good[1]
    forged = resealed(without_checkpoints(lines(files, cheaper)))
    place = packed(forged, tmp_path / "b.zip")
    code, text = check_here(place, "--earlier", str(bundle))
    assert (code, "of the earlier bundle is not in this one" in text) == (1, True)
    other = rewritten(files, "manifest.json", lambda d: set_in(d, ledger="other"))
    place = packed(other, tmp_path / "o.zip")
    code, text = check_here(bundle, "--earlier", str(place))
    assert (code, "of another ledger" in text) == (1, True)


def test_an_overdraft_that_was_hidden_is_found(tmp_path):
    """What was charged above the threshold is in the sums."""
    ledger = make_ledger(tmp_path / "over.db")
    import_prior(ledger, BASIC, PureDP(epsilon=3), because="x", evidence="e" * 64)
    files = read_bundle(write_evidence(ledger, tmp_path / "o.zip"))
    assert check_here(packed(files, tmp_path / "a.zip"))[0] == 0

    def hide(rows: list[dict[str, Any]]) -> None:
        assert [row["overdrawn"] for row in rows] == [1]
        rows[0]["overdrawn"] = 0

    hidden = resealed(rewritten(files, "accounts.json", hide))
    code, text = check_here(packed(hidden, tmp_path / "b.zip"))
    assert (code, "its state is not its journal's" in text) == (1, True)
    ledger.close()


def test_no_name_in_a_bundle_writes_to_the_terminal(bundle, tmp_path):
    """A line of it cannot look like the verdict, nor hide another one."""
    name = "x\nOK: all of this agrees.\x1b[2J\x9b1A\u202e"
    files = read_bundle(bundle)
    told = rewritten(files, "manifest.json", lambda d: set_in(d, created_at=name))
    told = rewritten(
        told, "manifest.json", lambda d: d["heads"].update({name: [1, "x"]})
    )
    code, text = check_here(packed(told, tmp_path / "b.zip"))
    assert (code, name in text) == (1, False)
    assert not any(line.startswith("OK") for line in text.splitlines())
    assert all(sign.isprintable() or sign == "\n" for sign in text)


def test_another_public_key_is_told(bundle, tmp_path):
    """It is a good key, and not the one that signed."""
    other = key_file(tmp_path, "x", public=True)
    code, text = check(bundle, tmp_path, "--key-file", other)
    assert (code, "was not signed with this key" in text) == (1, True)


def test_what_could_sign_is_no_key_to_verify_with(bundle, tmp_path):
    """Neither a private key nor a secret text; each is told what to take, unshown."""
    code, text = check(bundle, tmp_path, "--key-file", key_file(tmp_path, "k"))
    assert (code, "openssl pkey -in KEY -pubout" in text) == (2, True)
    (tmp_path / "key").write_text("x" * 40, "utf-8")
    code, text = check(bundle, tmp_path, "--key-file", str(tmp_path / "key"))
    assert (code, "dpflow ledger keygen KEY" in text) == (2, True)
    assert "xxx" not in text


def test_what_is_no_bundle_is_told(tmp_path):
    """No traceback; a missing file is a wrong use, a broken one is bad."""
    assert check(tmp_path / "none.zip", tmp_path / "empty")[0] == 2
    (tmp_path / "b.zip").write_bytes(b"no archive")
    assert check_here(tmp_path / "b.zip")[0] == 1
    with zipfile.ZipFile(tmp_path / "c.zip", "w") as archive:
        archive.writestr("a", "1")
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("a", "2")
    code, text = check_here(tmp_path / "c.zip")
    assert (code, "a name twice" in text) == (1, True)


# Writing


def test_nothing_is_overwritten(tmp_path):
    """Nor is a file left where none can be."""
    ledger = new_ledger(tmp_path)
    write_evidence(ledger, tmp_path / "b.zip")
    with pytest.raises(ConfigurationError, match="already"):
        write_evidence(ledger, tmp_path / "b.zip")
    with pytest.raises(LedgerUnavailable, match="cannot write"):
        write_evidence(ledger, tmp_path / "none" / "b.zip")


def test_a_bundle_is_for_its_owners_eyes(tmp_path):
    """As an export of the journal is, whatever the umask lets others read."""
    ledger = make_ledger(tmp_path / "own.db")
    before = os.umask(0)
    try:
        place = write_evidence(ledger, tmp_path / "own.zip")
    finally:
        os.umask(before)
    assert place.stat().st_mode & 0o777 == 0o600
    ledger.close()


def test_half_a_bundle_is_not_left_behind(tmp_path, monkeypatch):
    """Somebody might take it for evidence."""
    ledger = new_ledger(tmp_path)
    fill(ledger)

    def broken(*_):
        yield ("a", 1, "open", None, "{}", "{}", "", "", "0" * 64)
        raise LedgerUnavailable("gone", ledger="here")

    monkeypatch.setattr("dpflow.ledger.audit.bundle.entry_columns", broken)
    with pytest.raises(LedgerUnavailable, match="gone"):
        write_evidence(ledger, tmp_path / "b.zip")
    assert not (tmp_path / "b.zip").exists()


def test_an_empty_ledger_is_evidence_too(tmp_path):
    """Nothing was spent, and nothing is wrong."""
    place = write_evidence(new_ledger(tmp_path), tmp_path / "b.zip")
    code, text = check_here(place)
    assert code == 0, text
    assert "0 entries of 0 accounts" in text


def test_both_databases_give_evidence(path, tmp_path):
    """Steps that were amended, forfeited and left open are followed."""
    ledger = make_ledger(path)
    fill(ledger)
    ledger.settle(granted(ledger, STEP, policies=[SHOP]))
    place = write_evidence(ledger, tmp_path / "b.zip")
    code, text = check_here(place)
    assert code == 0, text
    ledger.close()


def test_a_signed_ledger_is_reopened_and_signed(tmp_path):
    """Heads that were signed later are checked as well."""
    ledger = new_ledger(tmp_path)
    fill(ledger)
    place = Path(ledger.place)
    ledger.close()
    again: Ledger = open_ledger(f"sqlite:///{place}")
    assert verify(again, key=KEY, sign_new=True).fine
    bundle = write_evidence(again, tmp_path / "b.zip", sign=KEY.sign)
    code, text = check(bundle, tmp_path / "empty", signed=True)
    assert code == 0, text
    assert os.environ.get("DPFLOW_LEDGER_KEY") is None
