"""Binds a pod's claims before the pod: reserves an existing volume, or has one provisioned for the
node.
"""

import asyncio
import logging

from gangline.api.resources import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES
from gangline.kube.client.client import ApiClient
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.cache.convert_storage import SELECTED_NODE
from gangline.scheduler.plugins.volumes import ClaimInfo, VolumeInfo
from gangline.scheduler.types.types import PodBinding

log = logging.getLogger(__name__)

VOLUME_TIMEOUT_S = 600.0
"""Timeout for provisioning and binding a volume; kube-scheduler uses the same."""
BOUND_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"


class VolumeBinder:
    """Binds the claims of pods on the nodes that a cycle has chosen."""

    def __init__(self, client: ApiClient, state: SchedulerCache) -> None:
        self._client, self._state = client, state
        self._changed = asyncio.Event()

    def notify_changed(self) -> None:
        """Check again: claims or volumes have changed."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def prepare(self, binding: PodBinding) -> bool:
        """Wait until all claims of a pod are bound; return whether they are.

        False means that they cannot be bound on this node: the pod becomes pending again.

        Raises:
            KubeError: a claim or volume cannot be written.
        """
        pod = self._state.pods.get(binding.pod)
        if pod is None or not pod.claims or not self._state.storage.synced:
            return True
        for claim in self._state.storage.unbound_claims(pod):
            if not await self._choose(claim, binding):
                return False
        try:
            async with asyncio.timeout(VOLUME_TIMEOUT_S):
                return await self._wait_until_bound(binding)
        except TimeoutError:
            log.warning("volumes not bound in time", extra={"pod": binding.pod})
            return False

    async def _choose(self, claim: ClaimInfo, binding: PodBinding) -> bool:
        """Reserve a free volume for a claim, or request one; False: neither is possible."""
        row = self._state.nodes.rows.get(binding.node)
        node = self._state.nodes.infos[row] if row is not None else None
        if node is None:
            return False
        storage = self._state.storage
        if (volume := storage.volume_for(claim, node)) is not None:
            return volume.claim == claim.key or await self._reserve_volume(volume, claim)
        if not storage.can_provision(claim):
            return False
        if claim.selected_node != binding.node:
            namespace, _, name = claim.key.partition("/")
            metadata = {"uid": claim.uid, "annotations": {SELECTED_NODE: binding.node}}
            await self._client.patch(
                PERSISTENT_VOLUME_CLAIMS, name, {"metadata": metadata}, namespace
            )
        return True

    async def _reserve_volume(self, volume: VolumeInfo, claim: ClaimInfo) -> bool:
        """Reserve a volume for a claim; the cluster's volume controller binds the two.

        Return False if another writer was faster.
        """
        namespace, _, name = claim.key.partition("/")
        current = await self._client.get(PERSISTENT_VOLUMES, volume.name)
        taken = current.spec.claim_ref
        if taken is not None:
            return (taken.namespace, taken.name) == (namespace, name)
        owner = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "namespace": namespace,
            "name": name,
            "uid": claim.uid,
        }
        body = {
            # A conflict if another writer has changed the volume since.
            "metadata": {
                "resourceVersion": current.metadata.resource_version,
                "annotations": {BOUND_BY_CONTROLLER: "yes"},
            },
            "spec": {"claimRef": owner},
        }
        await self._client.patch(PERSISTENT_VOLUMES, volume.name, body)
        return True

    async def _wait_until_bound(self, binding: PodBinding) -> bool:
        """Wait until all claims of a pod are bound; return False if the pod or the node selection
        is gone.
        """
        asked: set[str] = set()
        while True:
            # Taken before the state is read, so that no change in between is missed.
            changed = self._changed
            pod = self._state.pods.get(binding.pod)
            if pod is None or pod.uid != binding.uid:
                return False
            pending = self._state.storage.unbound_claims(pod)
            if not pending and all(key in self._state.storage.claims for key in pod.claims):
                return True
            for claim in pending:
                if claim.selected_node == binding.node:
                    asked.add(claim.key)
                elif claim.key in asked:
                    # A provisioner removes the selected node if it cannot provision there.
                    return False
            await changed.wait()
