"""``gangline deploy`` and ``gangline undeploy`` against an API server."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from gangline.api.resources import (
    CLUSTER_ROLES,
    CUSTOM_RESOURCE_DEFINITIONS,
    DEPLOYMENTS,
    NAMESPACES,
    PYTORCH_JOBS,
)
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import NotFound
from gangline.local import custom_resources
from gangline.local.apiserver.server import ApiServer
from integration.operator.process import kubeconfig_of
from unit.operator.builders import manifest

NAMESPACE = "gangline-system"
# The API server of the embedded cluster has the roles itself.
FEW = ("--set", "kinds={PyTorchJob}")


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

    # A misspelt value, and the problems of the cluster beside it.
    status, output = await gangline(api_server.kubeconfig, "deploy", "--set", "operater.replicas=1")
    assert status == 2
    assert "operater: there is no such value; did you mean 'operator'?" in output
    assert "installed in the namespace other" in output
    assert await names(client) == before


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
