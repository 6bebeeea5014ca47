"""A webhook that an API server knows of, and what tests ask of it."""

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from gangline.api.core.core import Secret
from gangline.api.resources import PYTORCH_JOBS, SECRETS
from gangline.kube.client.client import ApiClient
from gangline.kube.probes import Address
from gangline.operator.main import all_frameworks
from gangline.operator.settings import OperatorSettings
from gangline.operator.webhook.component import RunningWebhook, run_webhook
from gangline.operator.webhook.configuration import VALIDATING
from gangline.operator.webhook.settings import FailurePolicy, WebhookSettings
from integration.operator.cluster import NAMESPACE, PATIENCE_S
from unit.operator.builders import manifest

SYSTEM = "kube-system"
NAME = "gangline-operator-webhook"
SETTINGS = WebhookSettings(
    url="https://127.0.0.1:0",
    namespace=SYSTEM,
    failure_policy=FailurePolicy.FAIL,
    address=Address("127.0.0.1", 0),
    resync_s=0.2,
    remove_at_end=True,
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


@asynccontextmanager
async def webhook(client: ApiClient, **changes: Any) -> AsyncIterator[RunningWebhook]:
    """A webhook that the API server knows of."""
    settings = replace(SETTINGS, **changes)
    async with run_webhook(client, settings, all_frameworks(OperatorSettings())) as started:
        assert started is not None
        async with asyncio.timeout(PATIENCE_S):
            await started.controller.registered.wait()
        yield started


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


async def create(client: ApiClient, written: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = await client.request_json(
        "POST", PYTORCH_JOBS.path(NAMESPACE), body=written
    )
    return made


async def secret(client: ApiClient, name: str = NAME) -> Secret:
    return await client.get(SECRETS, name, SYSTEM)


async def bundle(client: ApiClient) -> str:
    """The authorities that the API server is reported to trust."""
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
