"""``gangline deploy`` and ``gangline undeploy`` against an API server."""

import asyncio
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from gangline.api.resources import (
    CLUSTER_ROLES,
    CUSTOM_RESOURCE_DEFINITIONS,
    DEPLOYMENTS,
    NAMESPACES,
    PODS,
    PYTORCH_JOBS,
    TRAIN_JOBS,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
)
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import Forbidden, NotFound
from gangline.local import custom_resources
from gangline.local.apiserver.server import ApiServer
from integration.deploy.previous_release import unpack_previous_release
from integration.operator.process import kubeconfig_of
from unit.operator.builders import manifest

NAMESPACE = "gangline-system"
# The API server of the embedded cluster has the roles itself.
FEW = ("--set", "kinds={PyTorchJob}")
REVIEW = "SubjectAccessReview"
CRD_FILE = Path(__file__).parents[3] / "deploy" / "crds" / "kubeflow.org_pytorchjobs.yaml"


async def gangline(kubeconfig: Path, *arguments: str) -> tuple[int, str]:
    """Run the command; returns its exit status and what it wrote."""
    process = await asyncio.create_subprocess_exec(
        *(Path(sys.executable).with_name("gangline"), *arguments),
        *("--kubeconfig", str(kubeconfig)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


async def kubectl(kubeconfig: Path, *arguments: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *("kubectl", "--kubeconfig", str(kubeconfig), *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()


async def names(client: ApiClient) -> set[str]:
    """Deployments and cluster roles of Gangline."""
    roles = (await client.list(CLUSTER_ROLES)).items
    deployments = (await client.list(DEPLOYMENTS)).items
    found = {each.metadata.name for each in (*roles, *deployments)}
    return {name for name in found if name.startswith("gangline-")}


async def test_everything_that_is_wrong_is_named_before_anything_is_changed(
    client: ApiClient, api_server: ApiServer, tmp_path: Path
) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    await client.create(NAMESPACES, {"metadata": {"name": NAMESPACE, "labels": labels}})
    await client.create(NAMESPACES, {"metadata": {"name": "other"}})
    await custom_resources.install_definitions(client)
    crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/pytorchjobs.kubeflow.org"
    theirs = await client.request_json("GET", crd)
    properties = theirs["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    properties["spec"]["properties"]["theirs"] = {"type": "string"}
    await client.request_json("PUT", crd, body=theirs)
    pod: dict[str, Any] = {"containers": [{"name": "c", "image": "i"}]}
    app = {"app": "x"}
    template = {"metadata": {"labels": app}, "spec": pod}
    spec = {"selector": {"matchLabels": app}, "template": template}
    second = {"metadata": {"name": "gangline-scheduler"}, "spec": spec}
    await client.create(DEPLOYMENTS, second, "other")
    rules: list[dict[str, Any]] = [
        {"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list"]}
    ]
    await client.create(CLUSTER_ROLES, {"metadata": {"name": "reader"}, "rules": rules})
    account = {"kind": "ServiceAccount", "name": "default", "namespace": "other"}
    binding = {
        "metadata": {"name": "reader"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "reader",
        },
        "subjects": [account],
    }
    await client.request_json(
        "POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", body=binding
    )
    await client.request_json(
        "POST", "/api/v1/namespaces/other/serviceaccounts", body={"metadata": {"name": "default"}}
    )
    reader = await kubeconfig_of(
        client, "other/default", api_server.kubeconfig, tmp_path / "reader"
    )
    before = await names(client)

    values = tmp_path / "values.yaml"
    values.write_text("podSecurityContext: {runAsNonRoot: null}\n")
    status, output = await gangline(reader, "deploy", *FEW, "--values", str(values), "--no-wait")
    assert status == 2
    assert "you may not create/patch" in output
    assert "create/patch customresourcedefinitions.apiextensions.k8s.io" in output
    assert "installed in the namespace other: a cluster has one release" in output
    assert "enforces Pod Security restricted:latest" in output
    assert "the CRD pytorchjobs.kubeflow.org of another installation" in output
    assert "v1 spec.theirs" in output
    assert "nothing was changed" in output

    # A misspelt value, and the problems of the cluster beside it: an unreachable webhook of others.
    await client.create(VALIDATING_WEBHOOK_CONFIGURATIONS, unreachable_webhook())
    status, output = await gangline(api_server.kubeconfig, "deploy", "--set", "operater.replicas=1")
    assert status == 2
    assert "operater: there is no such value; did you mean 'operator'?" in output
    assert "installed in the namespace other" in output
    assert "the server would refuse Deployment gangline-system/gangline-operator" in output
    assert 'failed calling webhook "gate.example.org"' in output
    assert await names(client) == before


def unreachable_webhook() -> dict[str, Any]:
    """It reviews Deployments, which cannot be created without it; nothing listens there."""
    rule = {
        "apiGroups": ["apps"],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["deployments"],
    }
    webhook = {
        "name": "gate.example.org",
        "rules": [rule],
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "clientConfig": {"url": "https://127.0.0.1:1"},
    }
    return {"metadata": {"name": "gate"}, "webhooks": [webhook]}


@pytest.mark.timeout(180)
async def test_it_is_installed_upgraded_and_removed(
    client: ApiClient, api_server: ApiServer
) -> None:
    config = api_server.kubeconfig
    status, output = await gangline(config, "deploy", *FEW, "--dry-run")
    assert status == 0, output
    assert "would apply Deployment gangline-system/gangline-scheduler" in output
    with pytest.raises(NotFound):
        await client.get(NAMESPACES, NAMESPACE)

    status, output = await gangline(
        config, "deploy", *FEW, "--no-wait", "--set", "operator.replicas=1"
    )
    assert status == 0, output
    operator = await client.get(DEPLOYMENTS, "gangline-operator", NAMESPACE)
    assert operator.spec.replicas == 1
    assert await client.get(CUSTOM_RESOURCE_DEFINITIONS, "pytorchjobs.kubeflow.org")
    assert {"gangline-operator", "gangline-scheduler"} <= await names(client)

    # The same again, but without the scheduler: what belongs to it alone is deleted.
    status, output = await gangline(config, "deploy", *FEW, "--no-wait", "--component", "operator")
    assert status == 0, output
    assert "deleted Deployment gangline-system/gangline-scheduler" in output
    assert "deleted Role kube-system/gangline-scheduler-leader-election" in output
    assert "gangline-scheduler" not in await names(client)
    assert (await client.get(DEPLOYMENTS, "gangline-operator", NAMESPACE)).spec.replicas == 2

    job = manifest(1, 1, name="long") | {"metadata": {"name": "long", "namespace": "default"}}
    await client.create(PYTORCH_JOBS, job, "default")
    status, output = await gangline(config, "undeploy")
    assert status == 1
    assert "1 jobs have not ended" in output
    assert "PyTorchJob default/long" in output
    status, output = await gangline(config, "undeploy", "--force")
    assert status == 0, output
    lines = output.splitlines()
    assert "WebhookConfiguration" in lines[0], "no call goes to a service that is gone"
    assert not await names(client)
    assert await client.get(CUSTOM_RESOURCE_DEFINITIONS, "pytorchjobs.kubeflow.org")
    assert await client.get(PYTORCH_JOBS, "long", "default")
    status, output = await gangline(config, "undeploy")
    assert status == 3
    assert "has installed nothing here" in output


async def test_a_release_of_helm_is_left_to_helm(client: ApiClient, api_server: ApiServer) -> None:
    owned = {
        "name": "gangline-operator",
        "annotations": {
            "meta.helm.sh/release-name": "train",
            "meta.helm.sh/release-namespace": "infra",
        },
    }
    await client.create(CLUSTER_ROLES, {"metadata": owned, "rules": []})
    status, output = await gangline(api_server.kubeconfig, "deploy", *FEW)
    assert status == 2
    assert "belongs to the Helm release train in the namespace infra" in output


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl on the path")
async def test_case_3_objects_of_plain_manifests_are_taken_over(
    client: ApiClient, api_server: ApiServer, tmp_path: Path
) -> None:
    plain = unpack_previous_release(tmp_path) / "deploy"
    folders = [plain / each for each in ("operator", "scheduler", "webhook")]
    config = api_server.kubeconfig
    arguments = [f"--filename={each}" for each in (*folders, CRD_FILE)]
    await kubectl(config, "apply", *arguments)
    before = await client.get(DEPLOYMENTS, "gangline-operator", NAMESPACE)

    status, output = await gangline(config, "deploy", *FEW, "--no-wait")
    assert status == 2
    assert "Deployment gangline-system/gangline-operator exists" in output
    assert "--adopt takes over objects that were made from plain manifests" in output
    status, output = await gangline(config, "deploy", *FEW, "--no-wait", "--adopt")
    assert status == 0, output
    after = await client.get(DEPLOYMENTS, "gangline-operator", NAMESPACE)
    assert after.metadata.uid == before.metadata.uid
    assert after.spec.template.metadata.labels["app.kubernetes.io/part-of"] == "gangline"

    status, output = await gangline(config, "deploy", "adopt", *FEW, "--release", "train")
    assert status == 0, output
    deployment = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/gangline-operator"
    crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/pytorchjobs.kubeflow.org"
    for path in (deployment, crd):
        metadata = (await client.request_json("GET", path))["metadata"]
        assert metadata["annotations"]["meta.helm.sh/release-name"] == "train"
        assert metadata["labels"]["app.kubernetes.io/managed-by"] == "Helm"
        managers = {each["manager"] for each in metadata["managedFields"]}
        assert "helm" in managers
        assert not [each for each in managers if each.startswith(("kubectl", "gangline-deploy"))]


async def _template_spec(client: ApiClient) -> dict[str, Any]:
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/gangline-operator"
    spec: dict[str, Any] = (await client.request_json("GET", path))["spec"]["template"]["spec"]
    return spec


async def test_case_6_roles_of_a_namespace_suffice_and_pod_security_admits_the_pods(
    client: ApiClient, api_server: ApiServer
) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    await client.create(NAMESPACES, {"metadata": {"name": NAMESPACE, "labels": labels}})
    await client.create(NAMESPACES, {"metadata": {"name": "team"}})
    only_roles = (
        "namespaces={team},scheduler.enabled=false,webhook.enabled=false,"
        "operator.readNodes=false,operator.readClusterRuntimes=false,rbac.aggregate=false"
    )
    status, output = await gangline(
        api_server.kubeconfig, "deploy", *FEW, "--no-wait", "--set", only_roles
    )
    assert status == 0, output
    assert await names(client) == {"gangline-operator"}
    deployment = await client.get(DEPLOYMENTS, "gangline-operator", NAMESPACE)
    assert "--namespace=team" in deployment.spec.template.spec.containers[0].args
    pod = {"metadata": {"name": "probe"}, "spec": await _template_spec(client)}
    await client.create(PODS, pod, NAMESPACE, dry_run=True)
    pod["spec"]["securityContext"] = {}
    with pytest.raises(Forbidden, match="violates PodSecurity"):
        await client.create(PODS, pod, NAMESPACE, dry_run=True)

    def may(namespace: str) -> dict[str, Any]:
        attributes = {"verb": "list", "group": "kubeflow.org", "resource": "pytorchjobs"}
        user = f"system:serviceaccount:{NAMESPACE}:gangline-operator"
        spec = {"user": user, "resourceAttributes": attributes | {"namespace": namespace}}
        return {"apiVersion": "authorization.k8s.io/v1", "kind": REVIEW, "spec": spec}

    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    for namespace, allowed in (("team", True), ("default", False)):
        answer = await client.request_json("POST", path, body=may(namespace))
        assert answer["status"]["allowed"] is allowed


async def test_trainjob_11_jobs_with_job_sets_of_upstream_are_named(
    client: ApiClient, api_server: ApiServer
) -> None:
    """The objects of such a job are not touched, and those of ours or of ended jobs not named."""
    await custom_resources.install_definitions(client)
    counts = {"name": "node", "active": 1, "ready": 1, "succeeded": 0, "failed": 0, "suspended": 0}
    complete = {
        "type": "Complete",
        "status": "True",
        "reason": "JobsCompleted",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    states: dict[str, dict[str, Any]] = {
        "theirs": {"jobsStatus": [counts]},
        "ended": {"jobsStatus": [counts], "conditions": [complete]},
        "ours": {"jobsStatus": [counts], "gangline": {"phase": "Running"}},
        "new": {},
    }
    for name, status in states.items():
        written = {
            "apiVersion": TRAIN_JOBS.api_version,
            "kind": TRAIN_JOBS.kind,
            "metadata": {"name": name},
            "spec": {"runtimeRef": {"name": "torch-distributed"}},
        }
        await client.create(TRAIN_JOBS, written, "default")
        if status:
            change = {"status": status}
            await client.patch(TRAIN_JOBS, name, change, "default", subresource="status")
    before = (await client.list(TRAIN_JOBS, "default")).items
    for arguments in (("deploy", "adopt"), ("deploy", "--dry-run", "--adopt")):
        code, output = await gangline(api_server.kubeconfig, *arguments)
        assert code == 0, output
        assert "Gangline runs no pods for 1 TrainJob of Kubeflow Trainer" in output
        assert output.count("default/theirs") == 1
        assert not any(f"default/{name}" in output for name in ("ended", "ours", "new"))
        assert "Keep the controller of JobSets until then." in output
    assert (await client.list(TRAIN_JOBS, "default")).items == before
    await client.delete(TRAIN_JOBS, "theirs", "default")
    code, output = await gangline(api_server.kubeconfig, "deploy", "adopt")
    assert "TrainJob of" not in output
