"""Tokens of a pod's service account, and the files with which it reaches the API server.

As in Kubernetes a token is bound to the pod, and renewed after 80 % of its lifetime, and after a
day at the latest. While a renewal fails the present token is used until it expires. Token, CA and
namespace are mounted into every container at a fixed path unless the pod opts out.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gangline.api.core.pod import Pod
from gangline.api.resources import SERVICE_ACCOUNTS
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import ApiError, NotFound
from gangline.local.kubelet.configuration import ConfigSource, TokenSpec
from gangline.local.kubelet.settings import KubeletSettings
from gangline.local.kubelet.volumes.projection import (
    ProjectedFile,
    token_file,
    volume_group,
    write_payload,
)

RENEW_AT = 0.8
"""The part of its lifetime after which a token is renewed."""
API_TOKEN = TokenSpec()
"""The token with which a pod reaches the API server."""
LONGEST_USE_S = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class _IssuedToken:
    text: str
    renew_at: float
    expires_at: float


class PodTokens:
    """The tokens of one pod. Times are those of a monotonic clock."""

    def __init__(
        self,
        client: ApiClient,
        settings: KubeletSettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._settings = settings
        self._clock = clock
        self._issued: dict[TokenSpec, _IssuedToken] = {}

    async def get(self, pod: Pod, spec: TokenSpec = API_TOKEN) -> str:
        """Return a token; empty if the pod's account does not exist. Raises ApiError: the API
        server does not answer or refuses, and no valid token is left.
        """
        present = self._issued.get(spec)
        now = self._clock()
        if present is not None and now < present.renew_at:
            return present.text
        try:
            issued = await self._request(pod, spec)
        except NotFound:
            self._issued.pop(spec, None)
            return ""
        except ApiError:
            if present is None or now >= present.expires_at:
                raise
            return present.text
        self._issued[spec] = issued
        return issued.text

    def renewal_in_s(self, spec: TokenSpec = API_TOKEN) -> float:
        """Return the seconds until a token must be renewed; 0 if it is due or was not issued."""
        present = self._issued.get(spec)
        return max(0.0, present.renew_at - self._clock()) if present is not None else 0.0

    async def _request(self, pod: Pod, spec: TokenSpec) -> _IssuedToken:
        meta = pod.metadata
        bound = {"kind": "Pod", "apiVersion": "v1", "name": meta.name, "uid": meta.uid}
        lifetime = spec.lifetime_s or self._settings.token_lifetime_s
        requested: dict[str, Any] = {"expirationSeconds": lifetime, "boundObjectRef": bound}
        if spec.audience:
            requested["audiences"] = [spec.audience]
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": requested,
        }
        account = pod.spec.service_account_name or "default"
        path = SERVICE_ACCOUNTS.path(meta.namespace, account, "token")
        now = self._clock()
        answer: Any = await self._client.request_json("POST", path, body=body)
        lifetime_s = float(answer["spec"]["expirationSeconds"])
        longest = self._settings.token_use_s or LONGEST_USE_S
        return _IssuedToken(
            str(answer["status"]["token"]),
            now + min(lifetime_s * RENEW_AT, longest),
            now + lifetime_s,
        )


ACCESS_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
_AUTHORITY = "kube-root-ca.crt"
_MODE = 0o644


async def write_api_access(
    pod: Pod, folder: Path, tokens: PodTokens, configs: ConfigSource
) -> Path | None:
    """Write the files for `ACCESS_PATH`; None if the pod's account does not exist or the pod opts
    out. A later call renews the token if it is due. Raises ApiError, or OSError: the disk is full.
    """
    namespace = pod.metadata.namespace
    declined = pod.spec.automount_service_account_token is False
    token = "" if declined else await tokens.get(pod)
    if not token:
        return None
    maps, _ = await configs.collect(namespace, ({_AUTHORITY}, set()))
    content = {"namespace": namespace.encode(), **maps.get(_AUTHORITY, {})}
    files = {name: ProjectedFile(value, _MODE) for name, value in content.items()}
    write_payload(folder, {**files, "token": token_file(pod, token)}, volume_group(pod))
    return folder
