"""A Brain with the rights of the chart does its work, and is refused nothing."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from chart_objects import OFF, chart_objects
from gangline.api.meta.resource import Resource
from gangline.api.resources import CONFIG_MAPS, EVENTS, JOB_ADVICE
from gangline.brain.collection.policy_config import POLICY_NAME
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import NotFound
from integration.brain.brain_process import BrainProcess, brain_process, brain_url
from integration.brain.test_brain_process import (
    advice_on,
    release_jobs,
    remove,
    run_once,
    signal_file,
    submit,
    training,
)
from integration.cluster.embedded import EmbeddedCluster, until

pytestmark = pytest.mark.slow

NAMESPACE = "gangline-system"
_RBAC = "rbac.authorization.k8s.io"
_KINDS = {
    "Namespace": ("", "v1", "namespaces"),
    "ServiceAccount": ("", "v1", "serviceaccounts"),
    "ClusterRole": (_RBAC, "v1", "clusterroles"),
    "ClusterRoleBinding": (_RBAC, "v1", "clusterrolebindings"),
    "Role": (_RBAC, "v1", "roles"),
    "RoleBinding": (_RBAC, "v1", "rolebindings"),
}


async def install(client: ApiClient) -> None:
    for manifest in chart_objects(
        brain={"enabled": True}, operator=OFF, scheduler=OFF, rbac={"aggregate": False}
    ):
        if manifest["kind"] not in _KINDS:
            continue
        group, version, plural = _KINDS[manifest["kind"]]
        namespace = manifest["metadata"].get("namespace")
        resource: Resource[dict[str, Any]] = Resource(
            dict[str, Any],
            group,
            version,
            plural,
            manifest["kind"],
            namespaced=namespace is not None,
        )
        await client.create(resource, manifest, namespace)


async def kubeconfig_of_brain(client: ApiClient, admin: Path, target: Path) -> None:
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/gangline-brain/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    answer = await client.request_json("POST", path, body=request)
    write_kubeconfig(admin, target, answer["status"]["token"])


def write_kubeconfig(admin: Path, target: Path, token: str) -> None:
    config = yaml.safe_load(admin.read_text())
    config["users"][0]["user"] = {"token": token}
    target.write_text(yaml.safe_dump(config))


async def policy_is_followed(client: ApiClient, brain: BrainProcess) -> None:
    """All mistakes of a policy are named in one event, and the last good one stays in force."""

    async def is_withdrawn() -> bool:
        return not (await client.list(JOB_ADVICE, "default")).items

    async def events() -> list[str]:
        found = (await client.list(EVENTS, NAMESPACE)).items
        return [event.message for event in found if event.reason == "InvalidPolicy"]

    await write_policy(client, "rules: [{mode: off}]")
    await until(is_withdrawn, 30.0, brain.said)
    await write_policy(client, "rules: [{mode: sometimes, may: [all]}, {budgets: {speed: 1}}]")
    [message] = await until(events, 30.0, brain.said)
    assert message.startswith("the last policy without mistakes stays in force: ")
    places = [mistake.partition(":")[0] for mistake in message.partition(": ")[2].split("; rules")]
    assert places == ["rules[0].may[0]", "[0].mode", "[1].budgets.speed"]
    assert await is_withdrawn()
    await write_policy(client, "rules: [{mode: advise}]")
    await advice_on(client, "train-2", brain)


async def write_policy(client: ApiClient, text: str) -> None:
    data = {"policy": text}
    try:
        await client.patch(CONFIG_MAPS, POLICY_NAME, {"data": data}, NAMESPACE)
    except NotFound:
        policy = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": POLICY_NAME},
            "data": data,
        }
        await client.create(CONFIG_MAPS, policy, NAMESPACE)


async def test_rights_of_the_manifests_suffice(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    release = signal_file(tmp_path)
    async with cluster.client() as client:
        await install(client)
        kubeconfig = tmp_path / "brain.kubeconfig"
        await kubeconfig_of_brain(client, cluster.home.default_kubeconfig, kubeconfig)
        options = ("--kubeconfig", str(kubeconfig), "--leader-election-namespace", NAMESPACE)
        with brain_process(cluster, tmp_path, "brain", *options) as brain:
            url = await brain_url(client, brain, NAMESPACE)
            await run_once(client, url, "train-1", release, brain)
            remove(release)
            await submit(client, training("train-2", release))
            await advice_on(client, "train-2", brain)

            async def leads() -> bool:
                return "leading" in brain.said()

            await until(leads, 30.0, brain.said)
            await policy_is_followed(client, brain)
            assert "forbidden" not in brain.said().lower()
            release_jobs(release)
