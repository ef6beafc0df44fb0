"""The project that the guard finds: one open ledger, policies as the files say."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import SimpleNamespace

import pytest
from prefect.context import FlowRunContext

from dpflow.exceptions import ConfigurationError, UnknownDataset
from dpflow.guard import project, request
from dpflow.guard.project import current_project
from tests.ledger.processes import Child
from tests.projects import POLICY, rewrite_policy

pytestmark = pytest.mark.quick


def test_policies_are_read_again_when_a_file_changes(shop):
    """And only then."""
    first = current_project().policies
    assert current_project().policies is first
    rewrite_policy(shop, "customer", "visitors")
    second = current_project().policies
    assert second.policy_for("shop").unit == "visitors"
    (shop / "policies" / "site.yaml").write_text(POLICY.replace("shop", "site"))
    assert sorted(current_project().policies) == ["shop", "site"]
    (shop / "policies" / "site.yaml").unlink()
    with pytest.raises(UnknownDataset):
        current_project().policies.policy_for("site")


def test_a_fork_while_another_thread_opens_the_ledger(shop, monkeypatch):
    """The child opens it for itself, instead of waiting for a thread it has not."""
    opening, go_on = threading.Event(), threading.Event()
    open_one = project.project_ledger

    def slowly(setup):
        opening.set()
        go_on.wait(30)
        return open_one(setup)

    monkeypatch.setattr(project, "project_ledger", slowly)
    thread = threading.Thread(target=current_project)
    thread.start()
    assert opening.wait(30)
    monkeypatch.setattr(project, "project_ledger", open_one)
    child = Child(lambda say: say(current_project().ledger.id))
    spoke = child.speaks(20)
    os.kill(child.pid, signal.SIGKILL)
    go_on.set()
    thread.join(30)
    assert spoke
    assert child.end()[1] == [current_project().ledger.id]


def test_a_flow_of_prefect_is_found_without_its_part_of_dpflow():
    """The guard loads that part, or the flow's share would be passed by."""

    def find_flows(say):
        for name in [name for name in sys.modules if name.startswith("dpflow.prefect")]:
            del sys.modules[name]
        request.context_finders.clear()
        run = SimpleNamespace(id="1", parent_task_run_id=None, deployment_id=None)
        run.auto_scheduled = False
        flow = SimpleNamespace(name="report")
        with FlowRunContext.model_construct(flow=flow, flow_run=run):
            say(",".join(flow.name for flow in request.current_context().flows))

    assert Child(find_flows).end() == (0, ["report"])


def test_a_step_within_prefect_is_refused_where_its_part_is_missing(monkeypatch):
    """The guard cannot tell which flow is around it."""
    monkeypatch.setattr("dpflow.guard.request.context_finders", [])
    monkeypatch.setattr("dpflow.guard.request.load_prefect", lambda: None)
    assert request.current_context("report").named == "report"
    monkeypatch.setattr("dpflow.guard.request._within_prefect", lambda: True)
    with pytest.raises(ConfigurationError, match=r"Import `dpflow\.prefect` first"):
        request.current_context("report")


ID = "0123456789abcdef" * 2


PINS = [
    *(b"", b"\n", b"\xff\xfe", b"../other/ledger.lock", b"\xef\xbb\xbf" + ID.encode()),
    f"<<<<<<< HEAD\n{ID}\n=======\n{ID}\n>>>>>>> change\n".encode(),
    None,
]


@pytest.mark.parametrize("content", PINS)
def test_a_pin_without_an_id_says_so(shop, content):
    """A mark of bytes, a conflict, a link as text, no text at all, a broken link."""
    lock = shop / "policies" / "ledger.lock"
    own = lock.read_text("utf-8")
    lock.unlink()
    if content is None:
        lock.symlink_to("nowhere")
    else:
        lock.write_bytes(content)
    with pytest.raises(ConfigurationError, match=f"{lock} holds no id") as caught:
        current_project()
    assert "Restore the file from version control" in str(caught.value)
    lock.unlink()
    (shop / "kept").write_text(own, "utf-8")
    lock.symlink_to(shop / "kept")
    assert current_project().ledger.id == own.strip()
