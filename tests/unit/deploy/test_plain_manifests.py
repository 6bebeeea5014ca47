"""``deploy/install.yaml`` and the kustomize bases: current, complete, and free of Helm."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from unit.tool_modules import load_tool

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
BASES = sorted((DEPLOY / "kustomize").iterdir())


def test_files_are_current() -> None:
    stale = load_tool("render_manifests").stale()
    assert stale == [], "run tools/render_manifests.py"


def objects_of(base: Path) -> list[dict[str, Any]]:
    text = (base / "manifests.yaml").read_text()
    return list(yaml.load_all(text, yaml.CSafeLoader))


def test_install_file_is_crds_and_the_default_base() -> None:
    documents = (DEPLOY / "install.yaml").read_text().split("---\n")
    crds = [text for text in documents if "kind: CustomResourceDefinition\n" in text]
    assert len(crds) == len(list((DEPLOY / "crds").glob("*.yaml")))
    assert len(documents) == len(crds) + len(objects_of(DEPLOY / "kustomize" / "default"))


@pytest.mark.parametrize("base", BASES, ids=lambda base: base.name)
def test_base_has_no_mark_of_helm_and_names_what_exists(base: Path) -> None:
    for each in objects_of(base):
        assert "helm" not in yaml.safe_dump(each).lower()
    kustomization = yaml.safe_load((base / "Kustomization").read_text())
    for resource in kustomization["resources"]:
        assert (base / resource).exists()
    for patch in kustomization.get("patches", []):
        name = yaml.safe_load(patch["patch"])["metadata"]["name"]
        plural, _, group = name.partition(".")
        assert (DEPLOY / "crds" / f"{group}_{plural}.yaml").exists()


def test_kustomize_moves_the_single_namespace(tmp_path: Path) -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("there is no kubectl")
    shutil.copytree(DEPLOY / "kustomize" / "single-namespace", tmp_path / "base")
    (tmp_path / "Kustomization").write_text("namespace: team-a\nresources: [base]\n")
    done = subprocess.run(
        [kubectl, "kustomize", str(tmp_path)], capture_output=True, text=True, check=True
    )
    moved = list(yaml.load_all(done.stdout, yaml.CSafeLoader))
    assert {each["metadata"]["namespace"] for each in moved} == {"team-a"}
    for each in moved:
        for subject in each.get("subjects", []):
            assert subject["namespace"] == "team-a"
    (deployment,) = [each for each in moved if each["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    # The kubelet replaces the variable, so the operator watches the namespace that it was moved to.
    assert "--namespace=$(MY_POD_NAMESPACE)" in container["args"]
    assert container["env"][0]["name"] == "MY_POD_NAMESPACE"
