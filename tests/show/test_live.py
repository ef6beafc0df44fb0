"""The live page: for this machine only, reading only; amounts in words."""

from __future__ import annotations

import threading
from fractions import Fraction
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from dpflow import guarded
from dpflow.config import settings
from dpflow.guard.project import forget_projects, project_ledger
from dpflow.ledger.decisions.refusals import amounts_text
from dpflow.show.live import HEADERS, make_app
from dpflow.show.page.facts import read_report
from dpflow.show.page.render import security_policy
from dpflow.show.sheets import reading_text, telling
from tests.projects import POLICY, TENTH, ledger_away, make_project, rows
from tests.show.page.pages import Tree

pytestmark = pytest.mark.quick

TWO = (POLICY, POLICY.replace("shop", "lab/2"))


def charge(dataset="shop"):
    """Charge a tenth of the budget, with a value that no page may show."""

    @guarded(dataset=dataset, cost=TENTH, release_key="count/{week}")
    def count(week):
        return "canary-271828"

    return count(threading.get_native_id())


def browser(host="127.0.0.1:8484"):
    """Return a client that asks under a name."""
    setup = settings()

    def check():
        ledger = project_ledger(setup, read_only=True)
        ledger.close()
        return ledger.id

    def read(dataset, stamp):
        return read_report(setup, dataset, stamp=stamp)

    return TestClient(make_app(read, check), base_url=f"http://{host}")


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """Return the folder of a project with two datasets."""
    return make_project(tmp_path, monkeypatch, *TWO)


PATHS = ("/", "/dataset/shop", "/status.json", "/healthz")


def test_the_page_is_live(shop):
    """Each answer is read anew."""
    client = browser()
    assert "not pinned yet" in client.get("/").text
    charge()
    page = client.get("/")
    assert page.status_code == 200
    assert "term 1" in page.text
    assert "The ledger agrees with its journal." in page.text
    assert "canary" not in page.text


def test_each_dataset_has_a_page(shop):
    """Linked from the first one; a name with a slash included."""
    charge()
    client = browser()
    links = {link["href"] for link in Tree(client.get("/").text).all("a")}
    assert {"/dataset/shop", "/dataset/lab/2"} <= links
    page = client.get("/dataset/lab/2").text
    assert "<h1>Privacy budget report: lab/2</h1>" in page
    assert "dataset shop" not in page
    missing = client.get("/dataset/shpo")
    assert missing.status_code == 404
    assert "did you mean" in missing.text.lower()
    evil = client.get("/dataset/%3Cscript%3Ealert(1)%3C%2Fscript%3E")
    assert evil.status_code == 404
    assert "<script" not in evil.text


def test_another_name_gets_no_answer(shop):
    """A page from elsewhere that points its name at this machine learns nothing."""
    for path in PATHS:
        for host in ("evil.example:8484", "127.0.0.1.evil.example", "0.0.0.0"):
            answer = browser(host).get(path)
            assert answer.status_code == 421
            assert "shop" not in answer.text
        for host in ("localhost:8484", "127.0.0.1", "LOCALHOST:1"):
            assert browser(host).get(path).status_code == 200


def test_nothing_can_be_sent(shop):
    """There is nothing that a request could change."""
    client = browser()
    for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
        for path in PATHS:
            assert client.request(method, path).status_code == 405
    assert client.head("/").status_code == 200


def test_every_answer_has_its_headers(shop):
    """Not kept, not framed, not guessed at, not read by other pages."""
    for path in (*PATHS, "/dataset/shpo", "/x"):
        answer = browser().get(path)
        for name, value in HEADERS.items():
            assert value in answer.headers[name]
        assert "access-control-allow-origin" not in answer.headers
        assert answer.headers["cache-control"] == "no-store"
        if answer.headers["content-type"].startswith("text/html"):
            policy = answer.headers["content-security-policy"]
            assert policy == f"{security_policy()}; frame-ancestors 'none'"


def test_a_missing_ledger_is_a_clear_page(shop):
    """And the next look finds it again."""
    charge()
    forget_projects()
    client = browser()
    with ledger_away(shop):
        page = client.get("/")
        assert page.status_code == 503
        assert "pins a ledger that is not at" in page.text
        assert client.get("/status.json").status_code == 503
        health = client.get("/healthz")
        assert (health.status_code, health.json()["status"]) == (503, "bad")
    assert client.get("/").status_code == 200


def test_looking_writes_nothing(shop):
    """Every row of every table is as it was."""
    charge()
    before = rows(shop)
    client = browser()
    for path in PATHS:
        assert client.get(path).status_code == 200
    assert rows(shop) == before


@given(st.fractions(min_value=0, max_value=10**6, max_denominator=10**12))
def test_spent_is_rounded_up_and_left_is_rounded_down(value):
    """Whatever the number is."""
    text = f"{value.numerator}/{value.denominator}"
    for up in (True, False):
        shown = amounts_text({"epsilon": text}, up=up).removeprefix("epsilon ")
        assert (Fraction(shown) >= value) if up else (Fraction(shown) <= value)


def reading(value, halt="2.5", *, charged=True):
    """Return the part of a view that a reading is made of."""
    return SimpleNamespace(
        reading=value, delta="0.000001", halt_at=halt, charged=charged
    )


@given(st.floats(min_value=0, max_value=1e6, allow_nan=False))
def test_no_reading_is_shown_smaller_than_it_is(value):
    """Whatever the reading is."""
    shown = reading_text(reading(value)).split()[1]
    assert Fraction(shown) >= Fraction(value)


def view(name, *, used=0.0, kind="partition"):
    """Return an account of a part, or of the whole."""
    place = f"shop#1/partition/{name}" if kind == "partition" else "shop#1"
    gate = SimpleNamespace(partition=name)
    return SimpleNamespace(id=place, name=name, used_fraction=used, gate=gate)


def test_of_many_parts_the_fullest_and_the_newest_stand_first():
    """What belongs to no part is always there, and few accounts all are."""
    parts = [view(f"2026-W{n:02}", used=0.9 if n == 3 else 0.1) for n in range(1, 40)]
    views = [view("", kind="dataset"), *parts]
    shown = [each.name for each in telling(views, 5)]
    assert shown == ["", "2026-W01", "2026-W03", "2026-W38", "2026-W39"]
    assert telling(views, 40) == views
    assert telling(views[:1], 0) == views[:1]
