"""Access of pods to the API server: the token of the service account, the CA, and the namespace.

As in Kubernetes they are mounted into every container unless its pod opts out; clients read them at
a fixed path.
"""

import time
from pathlib import Path
from typing import Any

from gangline.api.core.pod import Pod
from gangline.api.resources import SERVICE_ACCOUNTS
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import NotFound
from gangline.local.kubelet.config.config_source import ConfigSource
from gangline.local.kubelet.volumes.projection import (
    ProjectedFile,
    token_file,
    volume_group,
    write_payload,
)

ACCESS_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
_AUTHORITY = "kube-root-ca.crt"
_LIFE_S = 30 * 24 * 3600
_FRESH_S = 3600.0
_MODE = 0o644


class ServiceAccountAccess:
    """Requests tokens for service accounts, each at most once an hour."""

    def __init__(self, client: ApiClient, configs: ConfigSource) -> None:
        self._client = client
        self._configs = configs
        self._tokens: dict[tuple[str, str], tuple[float, str]] = {}

    async def write(self, pod: Pod, folder: Path) -> Path | None:
        """Write the files for `ACCESS_PATH`; None if the pod's account does not exist or the pod
        opts out.

        Each pod has its own: permission bits and owner of the token depend on the pod.

        Raises:
            ApiError: the API server does not answer.
            OSError: the disk is full.
        """
        namespace = pod.metadata.namespace
        declined = pod.spec.automount_service_account_token is False
        token = "" if declined else await self.token(pod)
        if not token:
            return None
        maps, _ = await self._configs.collect(namespace, ({_AUTHORITY}, set()))
        content = {"namespace": namespace.encode(), **maps.get(_AUTHORITY, {})}
        files = {name: ProjectedFile(value, _MODE) for name, value in content.items()}
        write_payload(folder, {**files, "token": token_file(pod, token)}, volume_group(pod))
        return folder

    async def token(self, pod: Pod) -> str:
        """A token of the pod's account; empty if the account does not exist.

        Raises:
            ApiError: the API server does not answer.
        """
        account = pod.spec.service_account_name or "default"
        key = (pod.metadata.namespace, account)
        made, token = self._tokens.get(key, (-_FRESH_S, ""))
        if time.monotonic() - made > _FRESH_S:
            token = await self._request(*key)
            if token:
                self._tokens[key] = (time.monotonic(), token)
        return token

    async def _request(self, namespace: str, account: str) -> str:
        path = SERVICE_ACCOUNTS.path(namespace, account, "token")
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": _LIFE_S},
        }
        try:
            answer: Any = await self._client.request_json("POST", path, body=body)
        except NotFound:
            return ""
        return str(answer["status"]["token"])
