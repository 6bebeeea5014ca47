"""Writes a pod's status to the API server: the newest, only when it changed, until it is stored."""

import asyncio
import logging
from typing import Any

from gangline.api.pod import Pod
from gangline.api.podstatus import PodStatus
from gangline.api.resources import PODS
from gangline.kube.client import Client, PatchKind
from gangline.kube.errors import ApiError, Conflict, NotFound
from gangline.local.kubelet.pod_status import status_patch

log = logging.getLogger(__name__)

_FIRST_RETRY_S = 0.2
_LONGEST_RETRY_S = 10.0


class StatusWriter:
    """Keeps the stored status of one pod like the reported one."""

    def __init__(self, client: Client, pod: Pod, online: asyncio.Event) -> None:
        self.gone = False
        """The pod is no longer on the server, or another has its name."""

        self._client = client
        self._online = online
        self._meta = pod.metadata
        self._stored = status_patch(pod.status, pod.metadata.uid)
        self._stored_version = pod.metadata.resource_version
        self._wanted: dict[str, Any] | None = None
        self._changed = asyncio.Event()
        self._settled = asyncio.Event()
        self._settled.set()

    def report(self, status: PodStatus) -> None:
        """Have this status stored, instead of any reported before."""
        patch = status_patch(status, self._meta.uid)
        if self._wanted is None and patch == self._stored:
            return
        self._wanted = patch
        self._settled.clear()
        self._changed.set()

    def observe(self, pod: Pod) -> None:
        """Note what the server holds: somebody else may have written."""
        if _is_newer(pod.metadata.resource_version, self._stored_version):
            self._stored = status_patch(pod.status, self._meta.uid)
            self._stored_version = pod.metadata.resource_version

    @property
    def is_settled(self) -> bool:
        """Whether what was reported last is stored."""
        return self._settled.is_set()

    async def settled(self) -> None:
        """Wait until what was reported last is stored (or there is no pod to store it in)."""
        await self._settled.wait()

    async def run(self) -> None:
        """Write until cancelled, or until the pod is gone."""
        retry_s = _FIRST_RETRY_S
        while not self.gone:
            await self._changed.wait()
            await self._online.wait()
            self._changed.clear()
            desired = self._wanted
            if desired is None:
                continue
            try:
                await self._write(desired)
                retry_s = _FIRST_RETRY_S
            except (NotFound, Conflict):
                # The precondition on the uid failed: the pod we report on does not exist.
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
        if self._wanted is desired:
            self._wanted = None
            self._settled.set()


def _is_newer(version: str, than: str) -> bool:
    """Versions of one server that counts them; where they are no numbers, any other is newer."""
    if version.isdigit() and than.isdigit():
        return int(version) > int(than)
    return version != than
