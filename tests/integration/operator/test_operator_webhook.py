"""The operator's webhook, asked by an API server: refusals, defaults, configurations."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from gangline.api.resources import PYTORCH_JOBS
from gangline.kube.client.client import ApiClient, PatchKind
from gangline.kube.errors import ApiError, Invalid
from gangline.local.apiserver.server import ApiServer
from gangline.operator.webhook.component import remove_webhook
from gangline.operator.webhook.configuration import CONFIGURATION_RESOURCES, VALIDATING
from gangline.operator.webhook.settings import FailurePolicy
from integration.operator.cluster import NAMESPACE
from integration.operator.webhook import (
    BAD,
    MISTAKES,
    SETTINGS,
    create,
    job,
    until,
    webhook,
)
from unit.operator.builders import manifest


async def kubectl(server: ApiServer, folder: Path, *arguments: str, text: str = "") -> str:
    """Run kubectl; all that it expected."""
    program = shutil.which("kubectl")
    if program is None:
        pytest.skip("no kubectl on the path")
    process = await asyncio.create_subprocess_exec(
        program,
        f"--kubeconfig={server.kubeconfig}",
        f"--cache-dir={folder}",
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    expected, _ = await process.communicate(text.encode())
    return expected.decode()


async def test_scale_is_refused_as_a_change_of_the_job_is(cluster: ApiClient) -> None:
    path = PYTORCH_JOBS.path(NAMESPACE, "scaled", "scale")
    async with webhook(cluster):
        await create(cluster, job("scaled"))
        scale = await cluster.request_json("GET", path)
        many = {**scale, "spec": {"replicas": 9000}}
        with pytest.raises(Invalid, match=r"Worker.replicas: 9000 makes a job of 9001 pods"):
            await cluster.request_json("PUT", path, body=many)
        await cluster.request_json("PUT", path, body={**scale, "spec": {"replicas": 0}})


@pytest.mark.slow
async def test_kubectl_shows_each_mistake_and_then_the_defaults(
    cluster: ApiClient, api_server: ApiServer, tmp_path: Path
) -> None:
    async with webhook(cluster):
        expected = await kubectl(api_server, tmp_path, "apply", "-f", "-", text=BAD)
        for mistake in MISTAKES:
            assert mistake in expected
        good = manifest(1, 1, name="good")
        good["metadata"] = {"name": "good"}
        del good["spec"]["runPolicy"]
        text = yaml.safe_dump(good)
        expected = await kubectl(api_server, tmp_path, "apply", "-f", "-", text=text)
        assert expected == "pytorchjob.kubeflow.org/good created\n"
        again = await kubectl(api_server, tmp_path, "apply", "-f", "-", text=text)
        assert again == "pytorchjob.kubeflow.org/good unchanged\n"
        shown = await kubectl(api_server, tmp_path, "get", "pytorchjob/good", "-o", "yaml")
    spec = yaml.safe_load(shown)["spec"]
    assert spec["runPolicy"]["cleanPodPolicy"] == "None"
    assert spec["pytorchReplicaSpecs"]["Worker"]["restartPolicy"] == "OnFailure"


async def test_a_job_that_was_stored_with_mistakes_can_still_be_finished_with(
    cluster: ApiClient,
) -> None:
    written = job(spec={"pytorchReplicaSpecs": {"Worker": {"template": {}}}})
    written["metadata"]["finalizers"] = ["example.com/hold"]
    await create(cluster, written)
    async with webhook(cluster):
        status = {"status": {"conditions": [{"type": "Failed", "status": "True"}]}}
        await cluster.patch(PYTORCH_JOBS, "train", status, NAMESPACE, subresource="status")
        labelled = {"metadata": {"labels": {"team": "a"}}}
        stored = await cluster.patch(PYTORCH_JOBS, "train", labelled, NAMESPACE)
        assert stored.metadata.generation == 1, "no defaults came with a label"
        worse = {"spec": {"nprocPerNode": "x"}}
        with pytest.raises(Invalid):
            await cluster.patch(PYTORCH_JOBS, "train", worse, NAMESPACE)
        await cluster.delete(PYTORCH_JOBS, "train", NAMESPACE)
        released = {"metadata": {"finalizers": None}}
        await cluster.patch(PYTORCH_JOBS, "train", released, NAMESPACE)
        assert not (await cluster.list(PYTORCH_JOBS, NAMESPACE)).items


async def test_configuration_of_another_owner_is_not_changed(
    cluster: ApiClient, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = {"metadata": {"name": SETTINGS.configuration}, "webhooks": []}
    await cluster.create(VALIDATING, theirs)
    async with webhook(cluster):
        await asyncio.sleep(0)
    assert (await cluster.get(VALIDATING, SETTINGS.configuration)).get("webhooks", []) == []
    assert "--webhook-configuration" in caplog.text


async def test_what_others_change_in_a_configuration_is_put_right(cluster: ApiClient) -> None:
    async with webhook(cluster):
        name = SETTINGS.configuration
        spoilt = [{"op": "replace", "path": "/webhooks/0/clientConfig/caBundle", "value": ""}]
        chosen = {"matchLabels": {"team": "a"}}
        spoilt.append({"op": "add", "path": "/webhooks/0/objectSelector", "value": chosen})  # type: ignore[dict-item]
        await cluster.patch(VALIDATING, name, spoilt, kind=PatchKind.JSON)

        async def right() -> bool:
            hook = (await cluster.get(VALIDATING, name))["webhooks"][0]
            return bool(hook["clientConfig"].get("caBundle"))

        await until(right, "the authority is named again")
        hook = (await cluster.get(VALIDATING, name))["webhooks"][0]
        assert hook["objectSelector"] == chosen, "what the operator does not set is not its own"


async def test_configurations_are_deleted_with_the_only_replica(cluster: ApiClient) -> None:
    async with webhook(cluster):
        for resource in CONFIGURATION_RESOURCES:
            assert await cluster.get(resource, SETTINGS.configuration)
    for resource in CONFIGURATION_RESOURCES:
        assert not (await cluster.list(resource)).items
    await create(cluster, job())


async def test_failure_policy_ignore_stores_jobs_while_the_webhook_is_down(
    cluster: ApiClient,
) -> None:
    kept: dict[str, Any] = {"remove_at_end": False}
    async with webhook(cluster, failure_policy=FailurePolicy.IGNORE, **kept):
        pass
    await create(cluster, job("ignored"))
    async with webhook(cluster, **kept):
        pass
    with pytest.raises(ApiError, match="failed calling webhook"):
        await create(cluster, job("failed"))
    await remove_webhook(cluster, SETTINGS)
    await create(cluster, job("free"))


async def test_a_second_operator_of_another_name_has_webhooks_of_its_own(
    cluster: ApiClient,
) -> None:
    other = {"configuration": "other", "secret": "other", "namespaces": ("elsewhere",)}
    async with webhook(cluster), webhook(cluster, **other):
        names = {each["metadata"]["name"] for each in (await cluster.list(VALIDATING)).items}
        assert names == {SETTINGS.configuration, "other"}
        with pytest.raises(Invalid):
            await create(cluster, yaml.safe_load(BAD))
        await create(cluster, job())
