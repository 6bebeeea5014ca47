"""Whether the API server reaches the webhook: it is asked to check a job that is not stored."""

import asyncio
from typing import Any

from gangline.kube.client.client import ApiClient
from gangline.kube.errors import ApiError, Invalid

KIND = "PyTorchJob"
_PATH = "/apis/kubeflow.org/v1/namespaces/{}/pytorchjobs"
_POLL_S = 0.5


def _wrong_job() -> dict[str, Any]:
    """Return a job that the schema of the CRD allows and the webhook refuses: two masters."""
    pod = {"containers": [{"name": "pytorch", "image": "none"}]}
    masters = {"replicas": 2, "template": {"spec": pod}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": KIND,
        "metadata": {"generateName": "gangline-deploy-"},
        "spec": {"pytorchReplicaSpecs": {"Master": masters}},
    }


async def find_webhook_fault(client: ApiClient, namespace: str, timeout_s: float) -> str:
    """Return why the webhook does not check jobs, or "" once it does.

    API servers notice a new webhook after a delay, so this asks again for ``timeout_s``.
    """
    fault = ""
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    await client.request_json(
                        "POST",
                        _PATH.format(namespace),
                        body=_wrong_job(),
                        params={"dryRun": "All"},
                    )
                    fault = "the API server cannot reach it"
                except Invalid:
                    return ""
                except ApiError as error:
                    fault = str(error)
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        return fault or "the API server does not answer"
