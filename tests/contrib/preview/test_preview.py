"""`dpflow preview`: what a change does, told without running it."""

from __future__ import annotations

import json

import pytest

from dpflow import BudgetExhausted, Gaussian
from dpflow.guard.project import forget_projects
from tests.cli.support import run, run_fine, run_json
from tests.contrib.preview.repository import CODE, POLICY, Repository
from tests.projects import rows

CANARY = "canary-" + "1618033988"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Return a project on a branch of its own, without any change yet."""
    for name in ("LEDGER_URL", "POLICIES", "PRINCIPAL", "ENVIRONMENT"):
        monkeypatch.delenv(f"DPFLOW_{name}", raising=False)
    found = Repository(tmp_path)
    found.git("init", "--quiet", "--initial-branch=main")
    found.write("pyproject.toml", "")
    found.write(".gitignore", ".dpflow/\n")
    found.write("policies/visits.yaml", POLICY)
    found.write("report.py", CODE)
    found.commit()
    found.git("switch", "--quiet", "--create", "change")
    monkeypatch.chdir(tmp_path)
    yield found
    forget_projects()


def step(found, name="visitors"):
    """Return one step of a preview."""
    (match,) = [each for each in found["steps"] if each["step"] == name]
    return match


def fits(fitting):
    """Return counts by gate."""
    return {each["gate"]: each["whole_budget"] for each in fitting}


def test_no_change_says_so(project):
    """Nothing is weaker, and every step is as it was."""
    found = run_json("preview", "--fail-on", "looser")
    assert (found["weaker"], found["problems"], found["lock"]) == ([], [], "same")
    assert [each["verdict"] for each in found["policies"]] == ["same"]
    assert step(found)["status"] == "same"
    assert step(found)["flows"] == ["daily-report"]
    assert "1 step is as it was" in run_fine("preview")


@pytest.mark.parametrize(
    ("old", "new", "verdict", "weaker"),
    [
        ("epsilon: 1,", "epsilon: 2,", "looser", True),
        ("epsilon: 1,", "epsilon: 0.5,", "tighter", False),
        ("filter: gaussian", "filter: concentrated", "other", True),
        ("unit: visitor", "unit: visitor-day", "other", True),
        ("halt_at_epsilon: 3", "halt_at_epsilon: 4", "looser", True),
        (", delta: 1e-6}\nfilter", ", delta: 1e-5}\nfilter", "looser", True),
        ("add-or-remove", "add-or-remove # as before", "same", False),
    ],
)
def test_a_policy_change_is_judged(project, old, new, verdict, weaker):
    """What may be weaker fails a check, and only that."""
    project.change("policies/visits.yaml", old, new)
    found = run_json("preview", "--fail-on", "looser", exit_code=int(weaker))
    (policy,) = found["policies"]
    assert (policy["verdict"], policy["weaker"]) == (verdict, weaker)
    assert run("preview").exit_code == 0


def test_a_mixed_change_is_not_taken_for_a_tighter_one(project):
    """A smaller epsilon does not make up for a larger delta."""
    text = POLICY.replace("epsilon: 1, delta: 1e-6", "epsilon: 0.9, delta: 1e-3")
    project.write("policies/visits.yaml", text)
    assert run("preview", "--fail-on", "looser").exit_code == 1


def test_guarantees_are_told_in_words(project):
    """Before and after."""
    project.change("policies/visits.yaml", "epsilon: 1,", "epsilon: 2,")
    (policy,) = run_json("preview")["policies"]
    assert "(epsilon = 1, " in policy["guarantee_before"]
    assert "(epsilon = 2, " in policy["guarantee_after"]
    (change,) = policy["changes"]
    assert (change["field"], change["before"], change["after"]) == (
        "budget.epsilon",
        "1",
        "2",
    )


def test_a_new_policy_is_new_and_a_removed_one_weaker(project):
    """Without a policy nothing bounds what is released."""
    project.write("policies/other.yaml", POLICY.replace("visits", "other"))
    found = run_json("preview", "--fail-on", "looser")
    assert {p["dataset"]: p["verdict"] for p in found["policies"]} == {
        "visits": "same",
        "other": "new",
    }
    (project.root / "policies" / "visits.yaml").unlink()
    found = run_json("preview", "--fail-on", "looser", exit_code=1)
    assert "the policy of visits is gone" in found["weaker"]
    assert "no policy governs visits: it would be refused" in step(found)["notes"]


def test_another_pinned_ledger_is_weaker(project):
    """It would forget what was spent."""
    project.write("policies/ledger.lock", "a" * 32)
    assert run_json("preview", "--fail-on", "looser")["lock"] == "new"
    project.commit()
    project.git("branch", "--force", "main")
    project.write("policies/ledger.lock", "b" * 32)
    assert run_json("preview", "--fail-on", "looser", exit_code=1)["lock"] == "changed"
    (project.root / "policies" / "ledger.lock").unlink()
    assert run_json("preview", "--fail-on", "looser", exit_code=1)["lock"] == "removed"


def test_a_policy_that_cannot_be_read_fails_the_check(project):
    """What nobody can read, nobody can judge."""
    project.change("policies/visits.yaml", "epsilon: 1,", "epsilon: -1,")
    found = run_json("preview", "--fail-on", "looser", exit_code=1)
    assert "the working tree" in found["problems"][0]
    project.write("policies/visits.yaml", POLICY)
    project.write("policies/twice.yaml", POLICY)
    found = run_json("preview", "--fail-on", "looser", exit_code=1)
    assert "another file governs already" in found["problems"][0]


@pytest.mark.parametrize("sign", ["\r", "\x85", "\u2028"])
def test_a_field_that_is_hidden_from_the_review_fails_the_check(project, sign):
    """Git and a browser show a comment where YAML reads a field."""
    hidden = f"unit: visitor  # each one{sign}errors: keep  # {sign}"
    text = POLICY.replace("unit: visitor", hidden)
    (project.root / "policies" / "visits.yaml").write_bytes(text.encode())
    found = run_json("preview", "--fail-on", "looser", exit_code=1)
    assert "may hide a field" in found["problems"][0]


# Steps


def test_a_changed_cost_tells_how_many_steps_fit(project):
    """Against each gate that the step asks, its flow's odometer included."""
    project.change("report.py", "SIGMA = 20", "SIGMA = 10")
    found = step(run_json("preview", "--fail-on", "looser"))
    assert found["cost_before"] == "Gaussian(sensitivity=1, sigma=20)"
    assert found["cost_after"] == "Gaussian(sensitivity=1, sigma=10)"
    assert fits(found["fits_before"])["dataset visits"] == 22
    assert fits(found["fits_after"])["dataset visits"] == 5
    assert fits(found["fits_after"]).keys() == {
        "dataset visits",
        "odometer of daily-report",
    }
    assert "sigma 20 is now 10: 0.5 times" in found["notes"]
    assert any("error at run" in note for note in found["notes"])


def test_what_fits_is_what_the_ledger_would_grant(project):
    """The counted steps are granted, and the next one is exhausted."""
    project.write("report.py", CODE.replace("raise RuntimeError", "print"))
    project.change("report.py", '    release_key="visitors/{day}",\n', "")
    assert run("ledger", "init").exit_code == 0
    from dpflow import guarded, release

    cost = Gaussian(sensitivity=1, sigma=20)
    step_of = guarded(dataset="visits", cost=cost, name="visitors", flow="daily-report")
    count = step_of(lambda: release(1))
    for _ in range(4):
        count()
    found = step(run_json("preview"))
    by_gate = {each["gate"]: each["now"] for each in found["fits_after"]}
    for _ in range(by_gate["dataset visits"]):
        count()
    with pytest.raises(BudgetExhausted):
        count()
    assert by_gate["dataset visits"] == 18
    found = step(run_json("preview"))
    assert found["fits_after"][0]["now"] == 0


@pytest.mark.parametrize(("epsilon", "now"), [("0.9", 14), ("2", None)])
def test_an_edited_policy_tells_what_fits_then(project, epsilon, now):
    """Tightened, the tally is kept; what a new term would leave is not said."""
    assert run("ledger", "init").exit_code == 0
    from dpflow import guarded, release

    cost = Gaussian(sensitivity=1, sigma=20)
    step_of = guarded(dataset="visits", cost=cost, name="visitors", flow="daily-report")
    count = step_of(lambda: release(1))
    for _ in range(4):
        count()
    project.change("policies/visits.yaml", "epsilon: 1,", f"epsilon: {epsilon},")
    found = step(run_json("preview"))
    assert found["fits_before"][0]["now"] == 18
    assert found["fits_after"][0]["now"] == now


def test_a_flow_that_the_policy_does_not_name_is_told(project):
    """Its steps would be refused."""
    project.change("report.py", 'name="daily-report"', 'name="weekly-report"')
    (note,) = step(run_json("preview"))["notes"]
    assert "does not let flow weekly-report use it" in note


def test_another_release_key_draws_anew(project):
    """Nothing is replayed under it."""
    project.change("report.py", "visitors/{day}", "people/{day}")
    (note,) = step(run_json("preview"))["notes"]
    assert "drawn and charged anew" in note


def test_new_removed_and_moved_steps_are_told(project):
    """A file may be renamed without a word."""
    new = CODE.replace("visitors", "visits").replace('dataset="visits"', 'dataset="x"')
    project.write("more.py", new)
    found = run_json("preview")
    assert (step(found)["status"], step(found, "visits")["status"]) == ("same", "new")
    assert "no policy governs x" in step(found, "visits")["notes"][0]
    (project.root / "more.py").unlink()
    (project.root / "report.py").rename(project.root / "daily.py")
    assert step(run_json("preview"))["status"] == "same"
    (project.root / "daily.py").unlink()
    assert step(run_json("preview", "--fail-on", "looser"))["status"] == "removed"


def test_a_function_that_lost_its_guard_is_weaker(project):
    """It goes on reading private data, and nobody counts."""
    start = CODE.index("@dp_task")
    end = CODE.index("def visitors")
    project.write("report.py", CODE[:start] + CODE[end:])
    found = run_json("preview", "--fail-on", "looser", exit_code=1)
    assert step(found)["status"] == "unguarded"
    assert found["weaker"] == ["step visitors has lost its guard"]


@pytest.mark.parametrize(
    ("new", "weaker"),
    [
        ("return 1", ["step visitors draws no noise any more"]),
        ("return 1  # release(1)", ["step visitors draws no noise any more"]),
        ("print('release'); return 1", ["step visitors draws no noise any more"]),
        ("LOCK.release(); return 1", ["step visitors draws no noise any more"]),
        ("return release(2)", []),
        ("return dpflow.release(2)", []),
        ("number = 1\n    return release(number)", []),
    ],
)
def test_a_draw_that_was_taken_off_is_weaker(project, new, weaker):
    """A body under a Gaussian that no longer draws it would give out exact numbers."""
    project.change("report.py", "return release(1)", new)
    found = run_json("preview", "--fail-on", "looser", exit_code=int(bool(weaker)))
    assert found["weaker"] == weaker
    assert step(found)["status"] == ("changed" if weaker else "same")
    notes = step(found)["notes"]
    assert [note for note in notes if "no draw is seen in its body" in note] == (
        notes if weaker else []
    )


def test_noise_of_its_own_is_told_and_may_be_weaker(project):
    """From then on nobody but the body's author vouches for the noise."""
    project.change("report.py", "return release(1)", "return 1 + mine()")
    project.change("report.py", 'dataset="visits"', 'noise="own", dataset="visits"')
    found = run_json("preview", "--fail-on", "looser", exit_code=1)
    assert found["weaker"] == ["step visitors draws its own noise from now on"]
    assert step(found)["status"] == "changed"
    project.commit()
    project.git("branch", "--force", "main")
    project.change("report.py", "1 + mine()", "2 + mine()")
    assert run_json("preview", "--fail-on", "looser")["weaker"] == []


def test_a_step_that_never_drew_is_told_and_a_new_one_fails(project):
    """What the change brings in is its doing; what was there before is only told."""
    bare = CODE.replace("release(1)", "1").replace("visitors", "visits")
    project.write("more.py", bare)
    found = run_json("preview", "--fail-on", "looser", exit_code=1)
    assert found["weaker"] == ["step visits draws no noise"]
    project.commit()
    project.git("branch", "--force", "main")
    found = run_json("preview", "--fail-on", "looser")
    assert found["weaker"] == []
    (note,) = step(found, "visits")["notes"]
    assert "no draw is seen in its body" in note
    assert "visits" in run_fine("preview")


def test_a_cost_for_another_relation_is_told(project):
    """It would be refused at run."""
    project.change(
        "report.py",
        "Gaussian(sensitivity=1, sigma=SIGMA)",
        "RandomizedResponse(epsilon=0.1, categories=2)",
    )
    project.change("report.py", "import Gaussian", "import RandomizedResponse")
    notes = step(run_json("preview"))["notes"]
    assert any("does not hold for add-or-remove" in note for note in notes)


def test_a_file_that_is_no_python_is_a_problem(project):
    """It may hold steps."""
    project.write("broken.py", "guarded(:\n")
    found = run_json("preview", "--fail-on", "looser", exit_code=1)
    assert "broken.py is no Python" in found["problems"][0]


@pytest.mark.filterwarnings("error")
def test_a_strange_file_brings_nothing_down(project):
    """No warning of its syntax, and what is nested too deeply is a problem."""
    project.write("odd.py", "flow = '\\d'\n")
    assert run_fine("preview").startswith("main (")
    deep = "+".join(["1"] * 20_000)
    project.write("deep.py", f"@guarded(dataset='a', cost={deep})\ndef f(): 1\n")
    found = run_json("preview", "--fail-on", "looser", exit_code=1)
    assert "deep.py" in found["problems"][0]


def test_a_link_is_not_followed(project, tmp_path_factory):
    """A change under review may point anywhere; errors would quote what is there."""
    secret = tmp_path_factory.mktemp("elsewhere") / "secret.yaml"
    secret.write_text(POLICY.replace("visitor", CANARY), "utf-8")
    for name in ("policies/link.yaml", "link.py"):
        (project.root / name).symlink_to(secret)
    result = run("preview", "--markdown", "--fail-on", "looser")
    assert result.exit_code == 1
    assert CANARY not in result.output


# Versions


def test_the_change_began_where_it_branched_off(project):
    """What came to main later is not the change's doing."""
    project.write("more.py", "x = 1\n")
    project.commit()
    project.git("switch", "--quiet", "main")
    project.change("policies/visits.yaml", "epsilon: 1,", "epsilon: 0.5,")
    project.commit()
    project.git("switch", "--quiet", "change")
    found = run_json("preview", "--fail-on", "looser")
    assert [each["verdict"] for each in found["policies"]] == ["same"]


def test_a_commit_is_compared_in_place_of_the_working_tree(project):
    """Edits that are not committed do not count then."""
    project.change("policies/visits.yaml", "epsilon: 1,", "epsilon: 2,")
    assert run("preview", "--head", "HEAD", "--fail-on", "looser").exit_code == 0
    project.commit()
    assert run("preview", "--head", "HEAD", "--fail-on", "looser").exit_code == 1


@pytest.mark.parametrize("name", ["none", "--help", "main; rm -rf x", ""])
def test_an_unknown_base_is_told(project, name):
    """And what a shallow clone needs."""
    result = run("preview", f"--base={name}")
    assert result.exit_code == 1
    assert "git knows no commit" in result.stderr


def test_outside_a_repository_the_error_says_what_is_needed(tmp_path, monkeypatch):
    """In our words, and without git's own usage."""
    monkeypatch.chdir(tmp_path)
    result = run("preview")
    assert result.exit_code == 1
    assert f"{tmp_path} is in no git repository" in result.stderr
    assert "git init" in result.stderr
    assert "fatal" not in result.stderr


def test_a_project_without_a_commit_has_nothing_to_compare_with(tmp_path, monkeypatch):
    """It says so, and what to do."""
    monkeypatch.chdir(tmp_path)
    Repository(tmp_path).git("init", "--quiet", "--initial-branch=main")
    result = run("preview")
    assert result.exit_code == 1
    assert "no branch to compare with" in result.stderr
    assert "--base" in result.stderr


def test_git_that_is_missing_is_told(project, monkeypatch):
    """By name, for its own error would say less."""
    monkeypatch.setattr("dpflow.contrib.preview.git.shutil.which", lambda _: None)
    result = run("preview")
    assert result.exit_code == 1
    assert "git, which is not installed" in result.stderr


def test_the_base_is_where_the_remote_begins(project):
    """Its HEAD, wherever it points to; else main; else master; another by --base."""
    assert run_json("preview")["base"].startswith("main (")
    project.git("branch", "--move", "main", "master")
    assert run_json("preview")["base"].startswith("master (")
    project.git("update-ref", "refs/remotes/origin/trunk", "HEAD")
    head = "refs/remotes/origin/HEAD"
    project.git("symbolic-ref", head, "refs/remotes/origin/trunk")
    assert run_json("preview")["base"].startswith("origin/trunk (")
    found = run_json("preview", "--base", "master")
    assert found["base"].startswith("master (")


def test_nothing_is_run_read_or_written(project):
    """The code raises when it is run; the ledger's rows and the files stay."""
    assert run("ledger", "init").exit_code == 0
    project.write("visits.csv", CANARY)
    before = rows(project.root), project.git("status", "--porcelain")
    for options in ((), ("--json",), ("--markdown",)):
        assert CANARY not in run_fine("preview", *options)
    assert (rows(project.root), project.git("status", "--porcelain")) == before


# Markdown


def test_markdown_is_a_readable_comment(project):
    """A headline, the policies, a table of steps, and what was not done."""
    project.change("policies/visits.yaml", "epsilon: 1,", "epsilon: 2,")
    project.change("report.py", "SIGMA = 20", "SIGMA = 40")
    text = run_fine("preview", "--markdown")
    assert text.startswith("## dpflow: main (")
    assert "**A guarantee may be weaker: the policy of visits is looser.**" in text
    assert "- budget.epsilon 1 is now 2 (looser)" in text
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len(table) == 3
    assert {line.count("|") for line in table} == {7}
    assert "`Gaussian(sensitivity=1, sigma=40)`" in table[2]
    assert "22 \N{RIGHTWARDS ARROW} " in table[2]
    assert "Nothing was run." in text


def test_names_are_no_markup(project):
    """Whoever opens the pull request chooses them."""
    name = "<img src=x>|@team `b` *c*"
    policy = POLICY.replace("unit: visitor", f"unit: {json.dumps(name)}")
    project.write("policies/visits.yaml", policy)
    project.change("report.py", "def visitors", "def visitörs")
    project.change("report.py", 'release_key="visitors/{day}"', f"name={name!r}")
    text = run_fine("preview", "--markdown")
    outside = "".join(text.split("`")[::2])
    assert "<img" not in outside
    assert "@team" not in outside
    assert {line.count("|") - line.count("\\|") for line in text.splitlines()} <= {0, 7}


def test_one_form_at_a_time(project):
    """Two would be one too many."""
    assert run("preview", "--markdown", "--json").exit_code == 2
