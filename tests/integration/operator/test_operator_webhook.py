"""The operator's webhook, asked by an API server and by clients that mean no good."""

import asyncio
import base64
import io
import shutil
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import yaml

from gangline.api.core import Secret
from gangline.api.meta import ObjectMeta
from gangline.api.resources import PYTORCH_JOBS, SECRETS
from gangline.kube.client import Client, PatchKind
from gangline.kube.errors import ApiError, Invalid
from gangline.kube.probes import Address
from gangline.local.apiserver.server import ApiServer
from gangline.operator.main import frameworks, run
from gangline.operator.settings import OperatorSettings
from gangline.operator.webhook import keyring
from gangline.operator.webhook.component import Webhook, admission, withdraw
from gangline.operator.webhook.configuration import BOTH, OWNED, VALIDATING
from gangline.operator.webhook.server import LARGEST_BODY
from gangline.operator.webhook.settings import FailurePolicy, Validity, WebhookSettings
from integration.operator.cluster import NAMESPACE, PATIENCE_S, install
from unit.operator.builders import manifest

SYSTEM = "kube-system"
NAME = "gangline-operator-webhook"
SETTINGS = WebhookSettings(
    url="https://127.0.0.1:0",
    namespace=SYSTEM,
    failure_policy=FailurePolicy.FAIL,
    address=Address("127.0.0.1", 0),
    look_every_s=0.2,
    removed_at_end=True,
)
"""As few seconds pass as can be; a call that fails is seen, because it is not ignored."""

BAD = """\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: bad, namespace: default}
spec:
  nprocPerNode: many
  elasticPolicy: {minReplicas: 5, maxReplicas: 2}
  pytorchReplicaSpecs:
    Master:
      replicas: 2
      template: {spec: {containers: [{name: pytorch}]}}
    Worker:
      replicas: 3
      template: {spec: {containers: [{name: main, image: train}]}}
    Boss:
      template: {spec: {containers: [{name: pytorch, image: train}]}}
"""
MISTAKES = (
    "spec.nprocPerNode",
    "spec.elasticPolicy.m",
    "spec.pytorchReplicaSpecs.Master.replicas",
    "spec.pytorchReplicaSpecs.Master.template.spec.containers[0].image",
    "spec.pytorchReplicaSpecs.Worker.template.spec.containers",
    "spec.pytorchReplicaSpecs.Boss",
)


@asynccontextmanager
async def webhook(client: Client, **changes: Any) -> AsyncIterator[Webhook]:
    """A webhook that the API server knows of."""
    settings = replace(SETTINGS, **changes)
    async with admission(client, settings, frameworks(OperatorSettings())) as started:
        assert started is not None
        async with asyncio.timeout(PATIENCE_S):
            await started.keeper.registered.wait()
        yield started


@pytest.fixture
async def cluster(client: Client) -> Client:
    """A cluster with our kinds, and no operator."""
    await install(client)
    return client


async def until(claim: Callable[[], Awaitable[bool]], what: str) -> None:
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not await claim():
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"never: {what}") from None


def job(name: str = "train", **changes: Any) -> dict[str, Any]:
    written = manifest(1, 1, name=name)
    return written | {"metadata": {"name": name, "namespace": NAMESPACE}} | changes


async def create(client: Client, written: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = await client.request_json(
        "POST", PYTORCH_JOBS.path(NAMESPACE), body=written
    )
    return made


async def secret(client: Client, name: str = NAME) -> Secret:
    return await client.get(SECRETS, name, SYSTEM)


async def kubectl(server: ApiServer, folder: Path, *arguments: str, text: str = "") -> str:
    """Run kubectl; all that it said."""
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
    said, _ = await process.communicate(text.encode())
    return said.decode()


async def test_a_job_with_mistakes_is_refused_naming_all_of_them(cluster: Client) -> None:
    async with webhook(cluster):
        with pytest.raises(Invalid) as refused:
            await create(cluster, yaml.safe_load(BAD))
    message = refused.value.status.message
    assert 'admission webhook "validate.jobs.gangline.dev" denied the request' in message
    fields = [cause.field for cause in refused.value.causes]
    for mistake in MISTAKES:
        assert mistake in message
        assert any(field.startswith(mistake) for field in fields), fields


@pytest.mark.slow
async def test_kubectl_shows_each_mistake_and_then_the_defaults(
    cluster: Client, api_server: ApiServer, tmp_path: Path
) -> None:
    async with webhook(cluster):
        said = await kubectl(api_server, tmp_path, "apply", "-f", "-", text=BAD)
        for mistake in MISTAKES:
            assert mistake in said
        good = manifest(1, 1, name="good")
        good["metadata"] = {"name": "good"}
        del good["spec"]["runPolicy"]
        text = yaml.safe_dump(good)
        said = await kubectl(api_server, tmp_path, "apply", "-f", "-", text=text)
        assert said == "pytorchjob.kubeflow.org/good created\n"
        again = await kubectl(api_server, tmp_path, "apply", "-f", "-", text=text)
        assert again == "pytorchjob.kubeflow.org/good unchanged\n"
        shown = await kubectl(api_server, tmp_path, "get", "pytorchjob/good", "-o", "yaml")
    spec = yaml.safe_load(shown)["spec"]
    assert spec["runPolicy"]["cleanPodPolicy"] == "None"
    assert spec["pytorchReplicaSpecs"]["Worker"]["restartPolicy"] == "OnFailure"


async def test_kubectl_shows_advice(cluster: Client, api_server: ApiServer, tmp_path: Path) -> None:
    written = job()
    specs = written["spec"]["pytorchReplicaSpecs"]
    specs["worker"] = specs.pop("Worker")
    async with webhook(cluster):
        text = yaml.safe_dump(written)
        said = await kubectl(api_server, tmp_path, "apply", "-f", "-", text=text)
    assert "Warning: spec.pytorchReplicaSpecs.worker" in said
    assert "created" in said


async def test_a_job_that_was_stored_with_mistakes_can_still_be_finished_with(
    cluster: Client,
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


async def test_what_cannot_be_changed_is_refused(cluster: Client) -> None:
    written = job()
    written["spec"]["runPolicy"] = {"managedBy": "kubeflow.org/training-operator"}
    async with webhook(cluster):
        await create(cluster, written)
        change = {"spec": {"runPolicy": {"managedBy": "kueue.x-k8s.io/multikueue"}}}
        with pytest.raises(Invalid, match="managedBy"):
            await cluster.patch(PYTORCH_JOBS, "train", change, NAMESPACE)


async def test_scaling_and_server_side_apply_pass(cluster: Client) -> None:
    async with webhook(cluster):
        await create(cluster, job())
        scale = {"spec": {"replicas": 3}}
        await cluster.request_json(
            "PATCH",
            PYTORCH_JOBS.path(NAMESPACE, "train", "scale"),
            body=scale,
            content_type=PatchKind.MERGE.value,
        )
        for _ in range(2):
            applied = await cluster.apply(
                PYTORCH_JOBS, job("applied"), NAMESPACE, manager="somebody"
            )
        assert applied.metadata.generation == 1
        assert (await cluster.get(PYTORCH_JOBS, "train", NAMESPACE)).spec.pytorch_replica_specs[
            "Worker"
        ].replicas == 3


@pytest.mark.slow
async def test_certificates_are_exchanged_under_load_and_no_call_fails(cluster: Client) -> None:
    """Certificates live for seconds; a call that cannot be made refuses the job, and is seen."""
    validity = Validity(
        lifetime=timedelta(seconds=30),
        renewed_before=timedelta(seconds=29),
        settle=timedelta(seconds=1),
    )
    shown: set[str] = set()
    async with webhook(cluster, validity=validity, look_every_s=0.1) as started:
        count, heard = 0, [(time.monotonic(), await bundle(cluster))]
        while len(shown) < 4 or count < 300:
            await asyncio.gather(*(create(cluster, job(f"j{count + n}")) for n in range(10)))
            count += 10
            heard.append((time.monotonic(), await bundle(cluster)))
            # Not every caller hears at once: this one is half a second behind.
            while len(heard) > 1 and heard[1][0] < time.monotonic() - 0.5:
                heard.pop(0)
            shown.add(await certificate(started.server.port, heard[0][1]))


async def bundle(client: Client) -> str:
    """The authorities that the API server is told to trust."""
    configured = await client.get(VALIDATING, SETTINGS.configuration)
    return base64.b64decode(configured["webhooks"][0]["clientConfig"]["caBundle"]).decode()


async def certificate(port: int, trusted: str) -> str:
    """The certificate that a new connection is shown by a webhook that it trusts."""
    context = ssl.create_default_context(cadata=trusted)
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return ssl.DER_cert_to_PEM_cert(shown)
    finally:
        writer.close()
        await writer.wait_closed()


async def test_a_lost_secret_is_made_anew_and_no_call_fails(cluster: Client) -> None:
    validity = Validity(settle=timedelta(seconds=0.5))
    async with webhook(cluster, validity=validity):
        first = (await secret(cluster)).data[keyring.KEY]
        await cluster.delete(SECRETS, NAME, SYSTEM)
        count = 0

        async def renewed() -> bool:
            nonlocal count
            count += 1
            await create(cluster, job(f"j{count}"))
            found = await cluster.list(SECRETS, SYSTEM, fields=f"metadata.name={NAME}")
            return bool(found.items) and found.items[0].data[keyring.KEY] != first

        await until(renewed, "another certificate is served")


@pytest.mark.parametrize(
    "data",
    [
        pytest.param({}, id="empty"),
        pytest.param(
            {"tls.crt": "anVuaw==", "tls.key": "anVuaw==", "ca.crt": "anVuaw=="}, id="junk"
        ),
        pytest.param({"tls.crt": "anVuaw=="}, id="half"),
    ],
)
async def test_a_secret_that_cannot_be_used_is_replaced_and_told(
    cluster: Client, caplog: pytest.LogCaptureFixture, data: dict[str, str]
) -> None:
    meta = ObjectMeta(name=NAME, namespace=SYSTEM, labels=dict(OWNED))
    await cluster.create(SECRETS, Secret(metadata=meta, data=data), SYSTEM)
    async with webhook(cluster):
        await create(cluster, job())
    assert ("cannot be used" in caplog.text) == bool(data)
    assert keyring.read((await secret(cluster)).data)


async def test_a_certificate_that_has_ended_is_replaced_at_once(
    cluster: Client, caplog: pytest.LogCaptureFixture
) -> None:
    long_ago = datetime.now(UTC) - timedelta(days=100)
    ring = keyring.plan(None, None, SETTINGS.names, long_ago, Validity(), frozenset())
    meta = ObjectMeta(name=NAME, namespace=SYSTEM, labels=dict(OWNED))
    await cluster.create(SECRETS, Secret(metadata=meta, data=keyring.write(ring)), SYSTEM)
    async with webhook(cluster):
        await create(cluster, job())
    assert "check the clocks" in caplog.text


async def test_a_secret_of_somebody_else_is_left_alone(
    cluster: Client, caplog: pytest.LogCaptureFixture
) -> None:
    meta = ObjectMeta(name=NAME, namespace=SYSTEM)
    theirs = await cluster.create(SECRETS, Secret(metadata=meta, data={"a": "Yg=="}), SYSTEM)
    async with webhook(cluster):
        await create(cluster, job())
    assert await secret(cluster) == theirs
    assert keyring.read((await secret(cluster, f"{NAME}-own")).data)
    assert caplog.text.count("--webhook-secret") == 1


async def test_a_configuration_of_somebody_else_is_left_alone(
    cluster: Client, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = {"metadata": {"name": SETTINGS.configuration}, "webhooks": []}
    await cluster.create(VALIDATING, theirs)
    async with webhook(cluster):
        await asyncio.sleep(0)
    assert (await cluster.get(VALIDATING, SETTINGS.configuration)).get("webhooks", []) == []
    assert "--webhook-configuration" in caplog.text


async def test_several_copies_share_one_certificate(cluster: Client) -> None:
    async with AsyncExitStack() as stack:
        copies = [
            await stack.enter_async_context(
                admission(cluster, SETTINGS, frameworks(OperatorSettings()))
            )
            for _ in range(3)
        ]
        for copy in copies:
            assert copy is not None
            async with asyncio.timeout(PATIENCE_S):
                await copy.keeper.registered.wait()
        serving = keyring.read((await secret(cluster)).data).serving
        for copy in copies:
            assert copy is not None
            shown = await certificate(copy.server.port, serving.authority.pem)
            assert shown.split() == serving.certificate.split()


async def test_what_others_change_in_a_configuration_is_put_right(cluster: Client) -> None:
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


async def test_the_configurations_go_with_the_only_one_who_answers(cluster: Client) -> None:
    async with webhook(cluster):
        for resource in BOTH:
            assert await cluster.get(resource, SETTINGS.configuration)
    for resource in BOTH:
        assert not (await cluster.list(resource)).items
    await create(cluster, job())


async def test_writes_pass_unchecked_while_nobody_answers_if_so_chosen(cluster: Client) -> None:
    kept: dict[str, Any] = {"removed_at_end": False}
    async with webhook(cluster, failure_policy=FailurePolicy.IGNORE, **kept):
        pass
    await create(cluster, job("ignored"))
    async with webhook(cluster, **kept):
        pass
    with pytest.raises(ApiError, match="failed calling webhook"):
        await create(cluster, job("failed"))
    await withdraw(cluster, SETTINGS)
    await create(cluster, job("free"))


async def test_the_operator_runs_it_and_is_ready_when_it_is_served(cluster: Client) -> None:
    stop = asyncio.Event()
    settings = OperatorSettings(webhook=SETTINGS)
    operator = asyncio.create_task(run(cluster, settings, stop))
    try:

        async def refused() -> bool:
            try:
                await create(cluster, yaml.safe_load(BAD))
            except Invalid:
                return True
            await cluster.delete(PYTORCH_JOBS, "bad", NAMESPACE)
            return False

        await until(refused, "mistakes are refused")
        await create(cluster, job())

        async def told() -> bool:
            made = await cluster.get(PYTORCH_JOBS, "train", NAMESPACE)
            return any(each.type == "Created" for each in made.status.conditions)

        await until(told, "the operator works")
    finally:
        stop.set()
        await operator


@pytest.fixture
async def session(client: Client) -> AsyncIterator[Callable[..., Awaitable[tuple[int, str]]]]:
    """Sends anything to the webhook; gives the code and the answer."""
    async with webhook(client) as started, aiohttp.ClientSession() as session:
        ring = keyring.read((await secret(client)).data)
        context = ssl.create_default_context(cadata=ring.serving.authority.pem)

        async def send(
            body: bytes,
            kind: str = "application/json",
            path: str = "/validate",
            method: str = "POST",
        ) -> tuple[int, str]:
            url = f"https://127.0.0.1:{started.server.port}{path}"
            headers = {"Content-Type": kind}
            async with session.request(
                method, url, data=io.BytesIO(body), headers=headers, ssl=context
            ) as answer:
                return answer.status, await answer.text()

        yield send


def a_review(**request: Any) -> bytes:
    return msgspec.json.encode(
        {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": {"uid": "u", "operation": "CREATE", **request},
        }
    )


@pytest.mark.parametrize(
    ("sent", "code", "words"),
    [
        pytest.param({"body": b"junk"}, 400, "no AdmissionReview", id="junk"),
        pytest.param({"body": b""}, 400, "no AdmissionReview", id="nothing"),
        pytest.param({"body": b"[" * 500_000}, 400, "no AdmissionReview|deeply", id="brackets"),
        pytest.param({"body": b"x", "kind": "text/plain"}, 415, "application/json", id="type"),
        pytest.param({"body": b" " * (LARGEST_BODY + 1)}, 413, "", id="huge"),
        pytest.param({"body": b"{}", "path": "/other"}, 404, "", id="path"),
        pytest.param({"body": b"{}", "method": "PUT"}, 405, "", id="method"),
        pytest.param({"body": b"", "method": "GET"}, 405, "", id="reading"),
        pytest.param({"body": a_review()}, 200, "no object", id="no object"),
        pytest.param(
            {"body": a_review(object={"apiVersion": "a/v1", "kind": "B"})}, 200, "true", id="kind"
        ),
        pytest.param(
            {"body": a_review(object=job() | {"spec": "x"}), "path": "/default"},
            200,
            "true",
            id="spec that is text",
        ),
    ],
)
async def test_whatever_is_sent_gets_an_answer(
    session: Callable[..., Awaitable[tuple[int, str]]], sent: dict[str, Any], code: int, words: str
) -> None:
    status, text = await session(**sent)
    assert status == code
    assert any(word in text for word in words.split("|")), text
    good = a_review(object=job())
    status, text = await session(good)
    assert (status, msgspec.json.decode(text)["response"]["allowed"]) == (200, True)


async def test_a_large_job_is_reviewed_beside_the_others(
    session: Callable[..., Awaitable[tuple[int, str]]],
) -> None:
    large = job()
    container = large["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    container["env"] = [{"name": f"V{n}", "value": "x" * 100} for n in range(8000)]
    status, text = await session(a_review(object=large))
    assert (status, msgspec.json.decode(text)["response"]["allowed"]) == (200, True)
    status, text = await session(a_review(object=large), path="/default")
    patch = msgspec.json.decode(text)["response"]["patch"]
    assert msgspec.json.decode(base64.b64decode(patch))[0]["op"] == "add"
