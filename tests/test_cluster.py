"""The files for containers: they parse, and what they name is there."""

from __future__ import annotations

import re
import tomllib

import yaml

from tests.projects import ROOT

CLUSTER = ROOT / "docs" / "cluster"


def test_the_compose_file_names_what_is_there():
    """Services that wait for others, volumes, the image's file, the deployment."""
    document = yaml.safe_load((CLUSTER / "compose.yaml").read_text("utf-8"))
    services = document["services"]
    for service in services.values():
        assert set(service.get("depends_on", {})) <= set(services)
        for volume in service.get("volumes", []):
            assert volume.partition(":")[0] in document["volumes"]
    build = services["worker"]["build"]
    folder = (CLUSTER / build["context"]).resolve()
    assert folder == ROOT
    assert (folder / build["dockerfile"]).is_file()
    named = re.search(r"deployment run (\S+)/(\S+)", services["report"]["command"])
    assert named is not None
    deployed = yaml.safe_load((ROOT / "prefect.yaml").read_text("utf-8"))["deployments"]
    assert named[2] in [each["name"] for each in deployed]
    published = [port for each in services.values() for port in each.get("ports", [])]
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_the_image_installs_extras_that_exist():
    """From the checkout; the name on the package index is not ours."""
    (extras,) = re.findall(
        r"pip install .*'\.\[(.*)\]'", (CLUSTER / "Dockerfile").read_text()
    )
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
