"""Writes a pod's status to the API server: only the newest one, only after a change, until it is
stored.
"""

import asyncio
import logging
from typing import Any

from gangline.api.core.pod import Pod
from gangline.api.core.pod_status import PodStatus
from gangline.api.resources import PODS
from gangline.kube.client.client import ApiClient, PatchKind
from gangline.kube.errors import ApiError, Conflict, NotFound
from gangline.local.kubelet.pods.pod_status import pod_status_patch

log = logging.getLogger(__name__)

_FIRST_RETRY_S = 0.2
_LONGEST_RETRY_S = 10.0


class StatusWriter:
    """Keeps the stored status of one pod equal to the reported one."""

    def __init__(self, client: ApiClient, pod: Pod, online: asyncio.Event) -> None:
        self.gone = False
        """True if the pod is no longer on the server, or another pod has its name."""

        self._client = client
        self._online = online
        self._meta = pod.metadata
        self._stored = pod_status_patch(pod.status, pod.metadata.uid)
        self._stored_version = pod.metadata.resource_version
        self._desired: dict[str, Any] | None = None
        self._changed = asyncio.Event()
        self._settled = asyncio.Event()
        self._settled.set()

    def report(self, status: PodStatus) -> None:
        """Store this status instead of any reported before."""
        patch = pod_status_patch(status, self._meta.uid)
        if self._desired is None and patch == self._stored:
            return
        self._desired = patch
        self._settled.clear()
        self._changed.set()

    def observe(self, pod: Pod) -> None:
        """Record the server's version, which another component may have written."""
        if _is_newer(pod.metadata.resource_version, self._stored_version):
            self._stored = pod_status_patch(pod.status, self._meta.uid)
            self._stored_version = pod.metadata.resource_version

    async def wait_stored(self) -> None:
        """Wait until the last reported status is stored, or the pod is removed."""
        await self._settled.wait()

    async def run(self) -> None:
        """Write until cancelled, or until the pod is removed."""
        retry_s = _FIRST_RETRY_S
        while not self.gone:
            await self._changed.wait()
            await self._online.wait()
            self._changed.clear()
            desired = self._desired
            if desired is None:
                continue
            try:
                await self._write(desired)
                retry_s = _FIRST_RETRY_S
            except (NotFound, Conflict):
                # The uid precondition failed: this pod no longer exists.
                self.gone = True
                self._settled.set()
            except ApiError as error:
                log.debug("status not written: %s", error, extra={"pod": self._meta.name})
                await asyncio.sleep(retry_s)
                retry_s = min(retry_s * 2, _LONGEST_RETRY_S)
                self._changed.set()

    async def _write(self, desired: dict[str, Any]) -> None:
        if desired != self._stored:
            stored = await self._client.patch(
                PODS,
                self._meta.name,
                desired,
                self._meta.namespace,
                kind=PatchKind.STRATEGIC,
                subresource="status",
            )
            self._stored = desired
            self._stored_version = stored.metadata.resource_version
        if self._desired is desired:
            self._desired = None
            self._settled.set()


def _is_newer(version: str, than: str) -> bool:
    """Compare resource versions of one server as numbers; if they are none, any other version is
    newer.
    """
    if version.isdigit() and than.isdigit():
        return int(version) > int(than)
    return version != than
