"""Plain manifests and kustomize bases that a release publishes: complete, and free of Helm."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from unit.tool_modules import load_tool

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
BASES = [base.name for base in sorted((DEPLOY / "kustomize").iterdir())]


@pytest.fixture(scope="module")
def manifests(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("manifests")
    load_tool("render_manifests").render(folder)
    return folder


def objects_of(base: Path) -> list[dict[str, Any]]:
    text = (base / "manifests.yaml").read_text()
    return list(yaml.load_all(text, yaml.CSafeLoader))


def test_install_file_is_crds_and_the_default_base(manifests: Path) -> None:
    documents = (manifests / "install.yaml").read_text().split("---\n")
    crds = [text for text in documents if "kind: CustomResourceDefinition\n" in text]
    assert len(crds) == len(list((DEPLOY / "crds").glob("*.yaml")))
    assert len(documents) == len(crds) + len(objects_of(manifests / "kustomize" / "default"))


@pytest.mark.parametrize("name", BASES)
def test_base_has_no_mark_of_helm_and_names_what_exists(manifests: Path, name: str) -> None:
    base = manifests / "kustomize" / name
    for each in objects_of(base):
        assert "helm" not in yaml.safe_dump(each).lower()
    kustomization = yaml.safe_load((base / "Kustomization").read_text())
    for resource in kustomization["resources"]:
        assert (base / resource).exists()
    for patch in kustomization.get("patches", []):
        plural, _, group = yaml.safe_load(patch["patch"])["metadata"]["name"].partition(".")
        assert (DEPLOY / "crds" / f"{group}_{plural}.yaml").exists()


def test_kustomize_moves_the_single_namespace(manifests: Path, tmp_path: Path) -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("there is no kubectl")
    shutil.copytree(manifests / "kustomize" / "single-namespace", tmp_path / "base")
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
