"""Who verifies cannot forge; and how keys are named, read and refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpflow.exceptions import ConfigurationError, LedgerRolledBack
from dpflow.ledger import create_ledger, open_ledger
from dpflow.ledger.audit.backup import journal_rows, verify_export
from dpflow.ledger.audit.reconcile import compare, reconcile
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.keys import LedgerKey, key_from_text, ledger_key, signed_text
from dpflow.ledger.ledger import Ledger
from tests.ledger.audit.books import KEY, cheaper, fill, points, rewrite, signed_thrice
from tests.ledger.support import Place, granted, make_ledger, read, url
from tests.ledger.witness.accidents import copy_database
from tests.signing import key_file, key_of

PUBLIC = LedgerKey(KEY.public)


# Forging


#: What somebody signs with who has the public key, and all that was ever signed.
FORGED = {
    "the public key": Ed25519PrivateKey.from_private_bytes(PUBLIC.public).sign,
    "another private key": key_of("x").sign,
    "nothing at all": lambda _: bytes(64),
    "a signature of something else": lambda _: KEY.sign(b"grant x"),
}


def forge(ledger: Ledger, sign: Any) -> None:
    """Say that another did it all, fit the chain, and sign its checkpoint anew."""
    path = Path(ledger.place)
    rewrite(path, lambda row: row.update(writer="eve@x"))
    hashes = dict(read(path, "SELECT number, hash FROM entry"))

    def change(row: dict[str, Any]) -> None:
        if row["kind"] == "checkpoint":
            point = row["body"]["signed"]
            point |= {"hash": hashes[point["number"]], "count": 1, "previous": ""}
            point["signature"] = sign(signed_text(ledger.id, point)).hex()

    rewrite(path, change)


def verified_export(place: Path, lines: Any) -> Any:
    """Return what is found in an export of these lines."""
    place.write_text("".join(f"{json.dumps(line)}\n" for line in lines), "utf-8")
    return verify_export(place, PUBLIC)[1]


@pytest.fixture
def charged(tmp_path: Path) -> Ledger:
    """Return a ledger without a witness, charged and signed once."""
    ledger = create_ledger(url(tmp_path / "ledger.db"), witness="none")
    for _ in range(3):
        ledger.settle(granted(ledger, "0.1"))
    assert verify(ledger, key=KEY, sign=True).bad == []
    return ledger


@pytest.mark.parametrize("how", FORGED)
def test_the_public_key_makes_no_checkpoint(charged, tmp_path, how):
    """Not even who may write the whole ledger; the auditor sees it, too."""
    forge(charged, FORGED[how])
    assert "its checkpoint was forged" in str(verify(charged, key=PUBLIC).bad[0])
    exported = verified_export(tmp_path / "e.jsonl", journal_rows(charged))
    (bad,) = map(str, exported.bad)
    assert "forged, or signed with another key" in bad


def test_with_the_private_key_the_same_passes(charged, tmp_path):
    """The control: only the signature differs, and `verify` adds none."""
    forge(charged, KEY.sign)
    assert verify(charged, key=PUBLIC).bad == []
    report = verified_export(tmp_path / "e.jsonl", journal_rows(charged))
    assert (report.bad, report.checkpoints, report.signed) == ([], 1, True)
    opened = open_ledger(url(Path(charged.place)), witness="none")
    opened.settle(granted(opened, "0.1"))
    for key, count in ((PUBLIC, 1), (KEY, 2)):
        assert verify(opened, key=key, sign=True).fine
        assert len(points(Path(charged.place))) == count


def test_a_forged_export_is_found(charged, tmp_path):
    """An edited or missing entry breaks the chain; only the end may be missing."""
    place, lines = tmp_path / "e.jsonl", [*journal_rows(charged)]
    edited = [*lines[:2], {**lines[2], "writer": "eve"}, *lines[3:]]
    assert verified_export(place, lines).fine
    # An editor adds an empty line at the end.
    for end in ("\n", "\r\n", " \n\n"):
        place.write_text(place.read_text("utf-8") + end, "utf-8", newline="")
        assert verify_export(place)[1].fine
    for bad, problem in (
        (lines[:2] + lines[3:], "entry 2 is missing"),
        (edited, "its content"),
        # A cut journal is an older one; without its checkpoint the key finds it.
        (lines[:-1], "checkpoint"),
    ):
        assert problem in str(verified_export(place, bad).bad[0])
    for text in ("", "{}", "[]", "null", '{"dpflow_export": 9}', "x"):
        place.write_text(text, "utf-8")
        with pytest.raises(ConfigurationError, match="dpflow ledger export"):
            verify_export(place)


# Naming a key


def test_a_key_is_named_or_absent(tmp_path, monkeypatch):
    """Relative to the project's root, as all that is configured; either key will do."""
    monkeypatch.delenv("DPFLOW_LEDGER_KEY", raising=False)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "inner")
    assert ledger_key() is None
    key_file(tmp_path, "k")
    monkeypatch.setenv("DPFLOW_LEDGER_KEY", "key-k")
    assert PUBLIC.verifies(b"x", ledger_key().sign(b"x").hex())
    assert "sign" not in repr(ledger_key())
    monkeypatch.setenv("DPFLOW_LEDGER_KEY", key_file(tmp_path, "k", public=True))
    assert ledger_key() == PUBLIC


def test_a_secret_in_place_of_a_path_is_not_shown(tmp_path, monkeypatch):
    """Nor by the error's causes; it says what to set."""
    (tmp_path / "key").write_text("k" * 40, "utf-8")
    for name, problem in (("k" * 40, "No such file"), ("key", "no key of Ed25519")):
        monkeypatch.setenv("DPFLOW_LEDGER_KEY", str(tmp_path / name))
        with pytest.raises(ConfigurationError, match=problem) as caught:
            ledger_key()
        assert (caught.value.__cause__, caught.value.__context__) == (None, None)
        assert "dpflow ledger sign" in str(caught.value)
        assert "kk" not in str(caught.value)


def pem_of(key: Any, how: Any) -> bytes:
    """Return a private key in PEM."""
    return key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, how)


def test_another_private_key_is_refused():
    """One with a passphrase, one of another curve, and garbage."""
    for text in (
        pem_of(Ed25519PrivateKey.generate(), form.BestAvailableEncryption(b"secret")),
        pem_of(generate_private_key(SECP256R1()), form.NoEncryption()),
        b"-----BEGIN PRIVATE KEY-----\nAAAA\n",
    ):
        with pytest.raises(ValueError, match="no key of Ed25519"):
            key_from_text(text)


pytestmark = pytest.mark.storages("sqlite")


@pytest.fixture
def ledger(path: Place) -> Iterator[Ledger]:
    """Make a ledger with two datasets and a bit of everything."""
    result = make_ledger(path)
    fill(result)
    yield result
    result.close()


def test_a_full_rewrite_is_fine_without_a_key_and_caught_with_one(path):
    """A writer of the database can fit everything but the signatures."""
    ledger = create_ledger(url(path), witness="none")
    for _ in range(5):
        ledger.settle(granted(ledger, "0.1"))
    assert verify(ledger, key=KEY, sign=True).fine
    ledger.settle(granted(ledger, "0.1"))
    rewrite(path, cheaper)
    assert "the history was rewritten" in verify(ledger).bad[0].problem
    hashes = dict(read(path, "SELECT number, hash FROM entry"))

    def fitted(row):
        if row["kind"] == "checkpoint":
            signed = row["body"]["signed"]
            signed["hash"] = hashes[signed["number"]]

    rewrite(path, fitted)
    assert verify(ledger).fine
    first = verify(ledger, key=KEY).bad[0]
    assert "its checkpoint was forged" in first.problem
    ledger.close()


def test_a_check_adds_no_signature_and_an_idle_ledger_gets_no_second(ledger, path):
    """Another key is not taken for the right one, and a check leaves no entry."""
    signed = "SELECT number FROM entry WHERE kind = 'checkpoint'"
    for _ in range(2):
        assert verify(ledger, key=KEY, sign=True).fine
    before = read(path, signed)
    assert len(before) == 1
    granted(ledger)
    assert verify(ledger, key=KEY).fine
    assert "another key" in verify(ledger, key=key_of("x")).bad[0].problem
    assert read(path, signed) == before
    assert verify(ledger, key=KEY, sign=True).fine
    assert read(path, signed) != before


def without(path, count, *, recount=False):
    """Turn one checkpoint into nothing, and fit the chain."""

    def change(row):
        if row["kind"] != "checkpoint":
            return
        signed = row["body"]["signed"]
        if signed["count"] == count:
            row |= {"kind": "refuse", "body": {"accounts": []}}
        elif recount and signed["count"] > count:
            signed["count"] -= 1

    rewrite(path, change)


@pytest.mark.parametrize("recount", [False, True])
def test_a_checkpoint_that_was_taken_out_of_the_middle_is_noticed(
    ledger, path, recount
):
    """Counting the rest anew does not help; the control: all are fine as they were."""
    signed_thrice(ledger, path)
    assert verify(ledger, key=KEY).bad == []
    without(path, 2, recount=recount)
    assert "forged" in str(verify(ledger, key=KEY).bad)


def test_the_newest_checkpoint_cannot_be_taken_off_under_a_witness(tmp_path):
    """Verify and the next decision notice; without a witness nothing does."""
    path = tmp_path / "ledger.db"
    ledger = create_ledger(url(path), witness=str(tmp_path / "w"))
    for _ in range(2):
        ledger.settle(granted(ledger))
        assert verify(ledger, key=KEY, sign=True).bad == []
    ledger.settle(granted(ledger))
    copy_database(path, tmp_path / "unsigned")
    assert verify(ledger, key=KEY, sign=True).bad == []
    copy_database(tmp_path / "unsigned", path)
    opened = open_ledger(url(path), witness=str(tmp_path / "w"))
    (bad,) = verify(opened, key=KEY).bad
    assert "signed checkpoints" in bad.problem
    with pytest.raises(LedgerRolledBack, match=r"\(checkpoint\)"):
        granted(opened)
    assert compare(opened).unsigned == 1
    copy_database(path, tmp_path / "copy")
    reconcile(opened, {}, reason="the newest was lost")
    # Every witnessed entry is in a copy from before; only the count of repairs differs.
    copy_database(path, tmp_path / "after")
    copy_database(tmp_path / "copy", path)
    with pytest.raises(LedgerRolledBack):
        granted(open_ledger(url(path), witness=str(tmp_path / "w")))
    copy_database(tmp_path / "after", path)
    granted(open_ledger(url(path), witness=str(tmp_path / "w")))
    blind = open_ledger(url(path), witness="none")
    assert verify(blind, key=KEY).bad == []
