"""The page: whole, harmless, readable by everyone, and silent about values."""

from __future__ import annotations

import base64
import hashlib
import itertools
import os
import re
import shutil
import subprocess
from dataclasses import fields, is_dataclass, replace

import pytest

from dpflow import Gaussian, Laplace, PureDP, guarded, release
from dpflow.exceptions import BudgetExhausted, BudgetRefused, DPStepFailed
from dpflow.guard.project import current_project
from dpflow.ledger.audit.journals import Finding, Verification
from dpflow.ledger.views.reading import OpenReservation
from dpflow.notebook import data_of
from dpflow.show.page import render as page
from dpflow.show.page.render import Live, render, render_problem, security_policy
from tests.cli.support import run
from tests.projects import POLICY, TENTH, make_project, rewrite_policy
from tests.show.page.pages import Tree, report

EVIL = "<script>alert('1')</script>\"&\x00\u202e"
CANARIES = ("canary-271828", "canary-161803", "canary-141421")


def make_shop(folder, monkeypatch):
    """Make a project that has charges, a failure and refusals."""
    flows = "flows: {weekly: {epsilon: 0.9, halt_at_epsilon: 3}}\n"
    odometer = "odometer: {theorem: rdp, delta: 1e-6}\nother_flows: allow\n"
    make_project(folder, monkeypatch, POLICY + odometer + flows)

    @guarded(
        dataset="shop",
        cost=TENTH,
        flow="weekly",
        release_key="count/{week}",
        ignore=("private",),
    )
    def count(week, *, private):
        return CANARIES[0]

    @guarded(dataset="shop", cost=Laplace(sensitivity=1, epsilon="0.4"), name=EVIL[:-2])
    def fails(private):
        raise ValueError(CANARIES[2] + private)

    @guarded(dataset="shop", cost=PureDP(epsilon=5), name="<b>greedy</b>")
    def greedy():
        return CANARIES[0]

    count("W1", private=CANARIES[1])
    with pytest.raises(DPStepFailed):
        fails(CANARIES[1])
    for _ in range(2):
        with pytest.raises(BudgetRefused):
            greedy()


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """Return the record of the project's page; no test changes the project."""
    with pytest.MonkeyPatch.context() as patch:
        make_shop(tmp_path_factory.mktemp("shop"), patch)
        yield report()


@pytest.fixture(scope="module")
def text(record):
    """Return the page."""
    return render(record)


def test_a_page_of_a_bad_ledger_says_so_first(record, text):
    """Before any number."""
    problem = Finding(problem="entry 3 was edited")
    found = replace(record.stamp.found, bad=[problem])
    bad = render(replace(record, stamp=replace(record.stamp, found=found)))
    assert bad.index("The ledger is bad.") < bad.index("Status")
    assert "entry 3 was edited" in bad
    assert "Let no step run before each line is explained. Where" in bad
    assert "agrees with its journal" not in bad
    assert "The ledger is bad" not in text


def test_no_value_no_argument_and_no_failure_is_on_it(record, text):
    """Their digests are; the canaries are in the ledger or were in the process."""
    for form in (text, str(record), str(data_of(record))):
        assert not any(canary in form for canary in CANARIES)
    (kept,) = record.releases
    assert kept.digest in text
    # What is kept would be found if it were shown.
    from dpflow.ledger.views.releases import release_value

    assert CANARIES[0] in release_value(current_project().ledger, "count/W1")[1]


def test_nothing_comes_from_elsewhere_and_nothing_runs(text):
    """No script, no style of an element, no address but those inside the page."""
    tree = Tree(text)
    tags = {tag for tag, _ in tree.found}
    assert tags.isdisjoint({"script", "iframe", "object", "embed", "form", "base"})
    for tag, attrs in tree.found:
        assert not any(name.startswith("on") or name == "style" for name in attrs), tag
        for name in ("src", "href", "srcset", "action"):
            assert attrs.get(name, "#").startswith(("#", "data:")), attrs
    assert "@import" not in text
    assert "url(" not in text


def test_its_policy_allows_its_own_style_and_no_other(text):
    """By the hash of what stands between the tags; a changed style has another."""
    style = re.search("<style>(.*?)</style>", text, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    (meta,) = [m for m in Tree(text).all("meta") if "http-equiv" in m]
    assert meta["content"] == security_policy()
    assert f"style-src 'sha256-{digest}'" in meta["content"]
    assert "default-src 'none'" in meta["content"]


NUMBER = re.compile(r"[\d.e/+-]+|20\d\d-.*")


def hostile(value):
    """Return a record whose texts are hostile, but for numbers, times and terms."""
    if isinstance(value, str):
        evil = f"{EVIL}#1" if re.search(r"#\d", value) else EVIL
        return value if NUMBER.fullmatch(value) else evil
    if is_dataclass(value):
        names = [field.name for field in fields(value) if field.init]
        return replace(value, **{n: hostile(getattr(value, n)) for n in names})
    if type(value) in (tuple, list):
        return type(value)(map(hostile, value))
    if isinstance(value, dict) and "filter" not in value:
        return {name: hostile(each) for name, each in value.items()}
    return value


def test_hostile_names_are_text(record):
    """Wherever a name can stand: dataset, unit, flow, step, account, key, message."""
    held = OpenReservation(
        reservation="r",
        body={"step": "s", "flow": "f", "cost": {"mechanism": "m"}},
        alive=False,
        at="then",
    )
    evil = hostile(replace(record, warnings=("w",), reservations=(held,)))
    stamp = replace(evil.stamp, found=Verification(bad=[Finding(problem=EVIL)]))
    evil = replace(evil, stamp=stamp)
    live = Live(here=EVIL, dataset=EVIL)
    page_text = render(evil)
    for text in (page_text, render(evil, live=live), render_problem(EVIL, live=live)):
        tree = Tree(text)
        assert not tree.all("script")
        assert (tree.wrong, tree.open) == ([], [])
        assert "<script" not in text
        assert "\x00" not in text
        assert "\u202e" not in text
        assert "&lt;script&gt;" in text
    assert page_text.count("&lt;script&gt;") >= 60


def test_without_escaping_the_test_above_would_fail(record, monkeypatch):
    """The hostile unit of a policy would be a script."""
    monkeypatch.setattr(page._environment(), "autoescape", False)
    page._environment().cache.clear()
    try:
        assert "<script>alert" in render(replace(record, warnings=(EVIL,)))
    finally:
        page._environment.cache_clear()


def test_a_halt_is_seen_everywhere(tmp_path, monkeypatch):
    """The page and the picture say by which gate, and count the same."""
    text = POLICY.replace("{epsilon: 1}", "{epsilon: 1, delta: 1e-6}")
    text = text.replace("basic", "gdp") + "odometer: {theorem: rdp, delta: 1e-6}\n"
    make_project(
        tmp_path, monkeypatch, f"{text}flows: {{weekly: {{halt_at_epsilon: 0.8}}}}\n"
    )
    cost = Gaussian(sensitivity=1, sigma=30)
    count = guarded(dataset="shop", cost=cost, flow="weekly", name="count", fresh=True)(
        lambda: release(4000)
    )
    refused = 0
    while refused < 2:
        try:
            count()
        except BudgetExhausted:
            refused += 1
    halted = report()
    (section,) = halted.sections
    assert section.status.refused == 2
    assert "2 refusals" in section.burn_down.sentence()
    titles = [title for title, _ in section.burn_down.lines]
    assert titles == ["dataset shop", "odometer of weekly, halts at 0.8"]
    tree = Tree(render(halted))
    said = " ".join(each for _, each in tree.text)
    assert "No whole run fits the odometer of weekly since" in said
    assert "weekly: no whole run fits its odometer" in said
    # A bar is red from its first per mille on where nothing runs.
    (meter,) = tree.all("meter")
    assert float(meter["high"]) < 0.001 < float(meter["value"]) < 0.95


def test_it_can_be_read_by_everyone(text):
    """Language, one h1, headings in order, texts for pictures, heads of tables."""
    tree = Tree(text)
    assert (tree.wrong, tree.open) == ([], [])
    assert tree.all("html") == [{"lang": "en"}]
    levels = [int(tag[1]) for tag, _ in tree.found if re.fullmatch("h[1-6]", tag)]
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    for image in tree.all("img"):
        assert image["alt"].startswith("Burn-down of shop")
        assert image["src"].startswith("data:image/svg+xml;base64,")
    assert len(tree.all("img")) == 1
    assert all(cell["scope"] in {"col", "row"} for cell in tree.all("th"))
    assert all(meter["aria-label"] for meter in tree.all("meter"))
    names = [attrs["id"] for _, attrs in tree.found if "id" in attrs]
    assert len(names) == len(set(names))
    targets = [a["href"][1:] for a in tree.all("a") if a["href"].startswith("#")]
    assert "main" in targets
    assert set(targets) <= set(names)
    for _, attrs in tree.found:
        assert attrs.get("aria-labelledby", "main") in names


def test_an_officer_finds_all_that_is_signed(tmp_path, monkeypatch):
    """In the open, for paper hides what a reader would have to click: page.txt has it.

    What an ended term refused is there, too.
    """
    make_shop(tmp_path, monkeypatch)
    rewrite_policy(
        tmp_path, "{epsilon: 1}\n", "{epsilon: 0.9}\nlifetime: {epsilon: 3}\n"
    )
    command = ("policy", "apply", "shop", "--new-term", "--reason", "a second year")
    assert run(*command).exit_code == 0
    tree = Tree(render(report()))
    assert not tree.all("details")
    words = " ".join(tree.words("p", "td", "th", "li", "dt"))
    refused = "2 times since .*, term 1: Step '<b>greedy</b>' was refused"
    assert re.search(refused, words)
    assert EVIL[:-2] in words


@pytest.fixture
def browse(tmp_path):
    """Return a function that opens a page in a browser; it gives picture and errors."""
    browser = os.environ.get("DPFLOW_BROWSER")
    if not browser:
        pytest.skip("DPFLOW_BROWSER names no Chromium; `make browser` does")

    def look(text, *options, out="--screenshot"):
        file, picture = tmp_path / "page.html", tmp_path / "page.png"
        file.write_text(text, "utf-8")
        flags = ("--headless", "--no-sandbox", "--enable-logging=stderr", *options)
        words = [browser, *flags, f"{out}={picture}", file.as_uri()]
        done = subprocess.run(words, capture_output=True, timeout=300, check=True)
        return picture.read_bytes(), b"CONSOLE" in done.stderr

    return look


@pytest.mark.slow
def test_a_browser_shows_the_page_without_an_error(text, browse):
    """Light, dark and narrow pages differ; a script that fails would be noticed."""
    dark = "--blink-settings=preferredColorScheme=0"
    pictures = [browse(text, *o) for o in ((), (dark,), ("--window-size=320,900",))]
    assert len({picture for picture, _ in pictures}) == 3
    assert not any(wrong for _, wrong in pictures)
    assert browse("<script>nothing()</script>")[1]


@pytest.mark.slow
def test_a_narrow_page_does_not_scroll_sideways(text, browse, tmp_path):
    """At 390 pixels, in a frame: a window of the browser is wider."""
    (tmp_path / "narrow.html").write_text(text, "utf-8")
    frame = """<iframe src="narrow.html" style="width: 390px"></iframe><script>
        document.querySelector("iframe").onload = event => {
            const page = event.target.contentDocument.documentElement
            if (page.scrollWidth > LIMIT) console.log("wide")
        }</script>"""
    options = ("--allow-file-access-from-files", "--virtual-time-budget=5000")
    for limit, is_wide in (("390", False), ("100", True)):
        assert browse(frame.replace("LIMIT", limit), *options)[1] is is_wide


@pytest.mark.slow
def test_paper_has_the_guarantee(text, browse, tmp_path):
    """A print has all words of the page but those of its links to itself."""
    if not shutil.which("pdftotext"):
        pytest.skip("pdftotext is missing; poppler-utils has it")
    browse(text, "--no-pdf-header-footer", out="--print-to-pdf")
    command = ["pdftotext", "-raw", str(tmp_path / "page.png"), "-"]
    done = subprocess.run(command, capture_output=True, timeout=60, check=True)
    paper = "".join(done.stdout.decode().split())
    for words in Tree(text).words("h2", "h3", "p", "li", "td", "dt"):
        assert "".join(words.split()) in paper or words.startswith("Skip"), words
