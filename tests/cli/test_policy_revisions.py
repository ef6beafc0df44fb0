"""`dpflow policy diff --base`: policies compared with a commit in git."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from dpflow.guard.project import forget_projects
from tests.cli.support import run, run_json
from tests.policy_examples import edited

pytestmark = pytest.mark.quick

POLICY = """\
dataset: visits
unit: visitor
relation: add-or-remove
budget: {epsilon: 1, delta: 1e-6}
filter: gdp
odometer: {theorem: rdp, delta: 1e-6}
flows:
  daily-report: {halt_at_epsilon: 3}
"""
CANARY = "canary-1618033988"
BASE = ("policy", "diff", "--base", "main")
STRICT = (*BASE, "--fail-on", "looser")


class Repository:
    """A project in a git repository of its own."""

    def __init__(self, root):
        self.root = root
        self.policies = root / "policies"
        self.policies.mkdir()
        self.policy = self.policies / "visits.yaml"

    def git(self, *arguments):
        """Run git, whatever the user's configuration says."""
        who = ("-c", "user.name=ann", "-c", "user.email=ann@example.org")
        safe = ("-c", "commit.gpgsign=0", "-c", "init.defaultBranch=main")
        command = ["git", *who, *safe, *arguments]
        subprocess.run(command, cwd=self.root, check=True, capture_output=True)

    def commit(self):
        """Commit everything."""
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "x")


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Return a project on a branch without any change yet."""
    for name in ("LEDGER_URL", "POLICIES", "ENVIRONMENT"):
        monkeypatch.delenv(f"DPFLOW_{name}", raising=False)
    repository = Repository(tmp_path)
    repository.git("init", "--quiet")
    (tmp_path / "pyproject.toml").write_text("")
    repository.policy.write_text(POLICY)
    repository.commit()
    repository.git("switch", "--quiet", "--create", "change")
    monkeypatch.chdir(tmp_path)
    yield repository
    forget_projects()


CHANGES = [
    ("epsilon: 1,", "epsilon: 2,", "looser", True),
    ("epsilon: 1,", "epsilon: 0.5,", "tighter", False),
    ("unit: visitor", "unit: visitor-day", "other", True),
    ("halt_at_epsilon: 3", "halt_at_epsilon: 4", "looser", True),
    ("epsilon: 1, delta: 1e-6", "epsilon: 0.9, delta: 1e-3", "other", True),
    ("add-or-remove", "add-or-remove # as before", "same", False),
    ("filter: gdp", "filter: gdp\nabout: {name: Visits}", "neutral", False),
]


def test_a_change_is_judged(project):
    """Only a change that may weaken a guarantee fails the check."""
    for old, new, verdict, weaker in CHANGES:
        project.policy.write_text(edited(old, new, POLICY))
        answer = run_json(*STRICT, exit_code=int(weaker))
        assert [each["verdict"] for each in answer["policies"]] == [verdict]
        assert bool(answer["weaker"]) is weaker
        assert run(*BASE).exit_code == 0


def test_a_new_policy_is_fine_and_a_removed_one_is_weaker(project):
    """Without a policy nothing bounds the releases."""
    (project.policies / "other.yaml").write_text(POLICY.replace("visits", "other"))
    assert run(*STRICT).exit_code == 0
    project.policy.unlink()
    record = run_json(*STRICT, exit_code=1)
    assert {p["dataset"]: p["verdict"] for p in record["policies"]} == {
        "visits": "removed",
        "other": "new",
    }


def test_another_pin_is_weaker(project):
    """Another ledger lacks the charges of the pinned one."""
    lock = project.policies / "ledger.lock"
    lock.write_text("a" * 32)
    assert run_json(*STRICT)["lock"] == "new"
    project.commit()
    project.git("branch", "--force", "main")
    lock.write_text("b" * 32)
    assert run_json(*STRICT, exit_code=1)["lock"] == "changed"
    lock.unlink()
    assert run_json(*STRICT, exit_code=1)["lock"] == "removed"


def test_a_policy_that_cannot_be_read_fails_the_check(project):
    """An invalid file, and a second one for a dataset."""
    second = project.policies / "twice.yaml"
    second.write_text(POLICY)
    answer = run_json(*STRICT, exit_code=1)
    assert "already governs the dataset" in answer["problems"][0]
    assert answer["weaker"] == ["a policy file cannot be read"]
    second.unlink()
    project.policy.write_text(POLICY.replace("epsilon: 1,", "epsilon: -1,"))
    (problem,) = run_json(*STRICT, exit_code=1)["problems"]
    assert "the working tree" in problem
    assert "epsilon" in problem


def test_a_field_that_is_hidden_from_the_review_fails_the_check(project):
    """Git and a browser show a comment where YAML reads a field."""
    for sign in ("\r", "\x85", "\u2028"):
        hidden = f"unit: visitor  # each one{sign}errors: keep  # {sign}"
        text = POLICY.replace("unit: visitor", hidden)
        project.policy.write_bytes(text.encode())
        answer = run_json(*STRICT, exit_code=1)
        assert "may hide a field" in answer["problems"][0]


def test_a_link_is_not_followed(project, tmp_path_factory):
    """A change under review may link anywhere; errors quote file contents."""
    secret = tmp_path_factory.mktemp("elsewhere") / "secret.yaml"
    secret.write_text(POLICY.replace("visitor", CANARY))
    (project.policies / "link.yaml").symlink_to(secret)
    result = run(*STRICT, "--markdown")
    assert result.exit_code == 1
    assert CANARY not in result.output


def test_a_link_inside_the_repository_is_followed(project):
    """In the commit and in the working tree; a link to a link, too."""
    shared, again = project.root / "shared", project.root / "shared" / "again.yaml"
    shared.mkdir()
    project.policy.rename(shared / "visits.yaml")
    again.symlink_to("visits.yaml")
    project.policy.symlink_to("../shared/again.yaml")
    project.commit()
    project.git("branch", "--force", "main")
    record = run_json(*STRICT)
    assert ([p["verdict"] for p in record["policies"]], record["problems"]) == (
        ["same"],
        [],
    )
    (shared / "visits.yaml").write_text(POLICY.replace("epsilon: 1,", "epsilon: 2,"))
    record = run_json(*STRICT, exit_code=1)
    assert [p["verdict"] for p in record["policies"]] == ["looser"]


@pytest.mark.parametrize(
    "target",
    ["../.git/config", "../ignored.yaml", "../missing.yaml", "visits.yaml", "../kept"],
)
def test_a_link_to_no_file_of_the_repository_is_a_problem(project, target):
    """Files that git does not have may hold anything; a folder has no text."""
    (project.root / "kept").mkdir()
    (project.root / "kept" / "file").touch()
    (project.root / "ignored.yaml").write_text(POLICY.replace("visitor", CANARY))
    (project.root / ".gitignore").write_text("ignored.yaml")
    project.policy.unlink()
    project.policy.symlink_to(target)
    project.commit()
    project.git("branch", "--force", "main")
    record = run_json(*STRICT, exit_code=1)
    assert len(record["problems"]) == 2
    for problem in record["problems"]:
        assert "a link to no file that git has" in problem
        assert CANARY not in problem


def test_the_comparison_begins_at_the_merge_base(project):
    """Later commits on the base branch are not part of the change."""
    (project.root / "more.txt").write_text("x")
    project.commit()
    project.git("switch", "--quiet", "main")
    project.policy.write_text(POLICY.replace("epsilon: 1,", "epsilon: 0.5,"))
    project.commit()
    project.git("switch", "--quiet", "change")
    assert [p["verdict"] for p in run_json(*STRICT)["policies"]] == ["same"]


def test_a_folder_outside_git_and_a_missing_git_are_errors(project, monkeypatch):
    """Each error says what is needed, in dpflow's words."""
    monkeypatch.setattr("dpflow.policy.revisions.shutil.which", lambda _: None)
    assert "not installed" in run(*BASE).stderr
    monkeypatch.undo()
    monkeypatch.chdir(project.root)
    (project.root / ".git").rename(project.root / "git")
    result = run(*BASE)
    assert result.exit_code == 1
    assert "in no git repository" in result.stderr
    assert "(or any of the parent directories): .git" in result.stderr
    assert "fatal" not in result.stderr


def test_what_git_says_of_a_failure_reaches_the_user(project, monkeypatch):
    """A repository of another user, and an object that is missing."""
    real = subprocess.run

    def of_another(command, **options):
        options["env"]["GIT_TEST_ASSUME_DIFFERENT_OWNER"] = "1"
        return real(command, **options)

    with monkeypatch.context() as patch:
        patch.setattr("dpflow.policy.revisions.subprocess.run", of_another)
        words = " ".join(run(*BASE).stderr.split())
        assert "dubious ownership" in words
        assert f"git config --global --add safe.directory {project.root}" in words
        patch.setenv("GIT_CONFIG_COUNT", "1")
        patch.setenv("GIT_CONFIG_KEY_0", "safe.directory")
        patch.setenv("GIT_CONFIG_VALUE_0", "*")
        assert run(*BASE).exit_code == 0
    shutil.rmtree(project.root / ".git" / "objects")
    (project.root / ".git" / "objects").mkdir()
    result = run(*BASE)
    assert result.exit_code == 1
    assert "removed" not in result.output
