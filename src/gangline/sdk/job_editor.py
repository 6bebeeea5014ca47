"""Changes of existing jobs: suspend, resume, scale, restart, copy."""

import asyncio
from collections.abc import Callable
from typing import Any

from gangline.api.meta.json_objects import subobject
from gangline.api.meta.objects import Status
from gangline.api.resources import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    PERSISTENT_VOLUME_CLAIMS,
    POD_GROUPS,
    SECRETS,
    SERVICES,
)
from gangline.kube.client.client import PatchKind
from gangline.kube.errors import Conflict, Forbidden, NotFound
from gangline.sdk.client import JobClient, JobError, NoSuchJob
from gangline.sdk.jobs import Job, JobState
from gangline.sdk.manifests import (
    Manifest,
    rename_objects,
    replica_count,
    scale_patch,
    to_submittable,
    with_owner,
)

OWNER_ANNOTATION = "gangline.dev/belongs-to"
_OWNED_RESOURCES = (CONFIG_MAPS, SECRETS, SERVICES, DEPLOYMENTS, PERSISTENT_VOLUME_CLAIMS)
_POLL_INTERVAL_S = 0.2


class JobEditor:
    """Changes jobs of one cluster.

    With a generation, a job is changed only if its specification is still of this generation.
    """

    def __init__(self, jobs: JobClient, generation: int | None = None) -> None:
        self.jobs = jobs
        self._generation = generation

    async def suspend(self, name: str, namespace: str, *, suspended: bool = True) -> bool:
        """Suspend a job, which deletes its pods, or resume it.

        Returns:
            False if the job was in this state already.

        Raises:
            NoSuchJob, AmbiguousJob: no job, or several jobs have this name.
            JobError: the job has ended.
        """
        job = await self.jobs.get(name, namespace)
        if job.state.finished:
            raise JobError(f"job {name!r} has ended ({job.state}): only 'restart' runs it again")
        stored = await self.jobs.manifest(name, namespace)
        *parents, field = job.kind.suspend_path
        if bool(subobject(stored, *parents).get(field)) is suspended:
            return False
        patch: Manifest = {field: suspended}
        for parent in reversed(parents):
            patch = {parent: patch}
        await self._patch(stored, patch)
        return True

    async def scale(
        self, name: str, namespace: str, replicas: Callable[[int], int], role: str = "worker"
    ) -> tuple[int, int]:
        """Change the number of replicas of a role.

        Args:
            name: the job.
            namespace: its namespace.
            replicas: returns the new number for the current number.
            role: the role.

        Returns:
            The number before and after.

        Raises:
            NoSuchJob, AmbiguousJob: as ``suspend``.
            JobError: the job has ended or has no such role, or the new number is negative.
        """
        stored = await self.jobs.manifest(name, namespace)
        if (job := await self.jobs.get(name, namespace)).state.finished:
            raise JobError(f"job {name!r} has ended ({job.state})")
        before = replica_count(stored, role)
        after = replicas(before)
        if after < 0:
            raise JobError(
                f"job {name!r} has {before} replicas of {role!r}: it cannot have {after}"
            )
        try:
            patch = scale_patch(stored, role, after)
        except KeyError as error:
            if not error.args[0]:
                message = f"{job.qualified_name}: the number of its pods cannot be changed"
                raise JobError(message) from error
            raise JobError(f"job {name!r} has no role {role!r}; it has {error.args[0]}") from error
        await self._patch(stored, patch)
        return before, after

    async def move(self, name: str, namespace: str, queue: str) -> str:
        """Move a job to another queue: the job itself, and the pod groups that it has.

        Returns:
            The queue before; empty if the job named none.

        Raises:
            NoSuchJob, AmbiguousJob: as ``suspend``.
            JobError: the job has ended.
        """
        job = await self.jobs.get(name, namespace)
        if job.state.finished:
            raise JobError(f"job {name!r} has ended ({job.state})")
        if not job.kind.has_runtime:  # a TrainJob names no queue, only its pod group does
            stored = await self.jobs.manifest(name, namespace)
            policy: Manifest = {"schedulingPolicy": {"queue": queue}}
            in_policy = bool(job.kind.replica_specs_field)
            await self._patch(stored, {"spec": {"runPolicy": policy} if in_policy else policy})
        groups = await self.jobs.client.list(POD_GROUPS, namespace)
        for group in groups.items:
            owner = group.metadata.controller
            if owner is not None and owner.uid == job.uid and group.spec.queue != queue:
                change = {"spec": {"queue": queue}}
                await self.jobs.client.patch(POD_GROUPS, group.metadata.name, change, namespace)
        return job.queue

    async def collect_manifests(self, name: str, namespace: str) -> list[Manifest]:
        """Return a job and the objects that it owns, without fields that the server has set.

        Raises:
            NoSuchJob, AmbiguousJob: as ``suspend``.
        """
        stored = await self.jobs.manifest(name, namespace)
        uid = stored["metadata"]["uid"]
        owned = await self._owned_objects(stored["metadata"]["name"], namespace, uid)
        return [to_submittable(manifest) for manifest in (stored, *owned)]

    async def restart(self, name: str, namespace: str) -> Job:
        """Start a job from its beginning.

        A running job gets new pods; a job that has ended is deleted and submitted again.

        Raises:
            NoSuchJob, AmbiguousJob: as ``suspend``.
        """
        job = await self.jobs.get(name, namespace)
        if job.state.finished:
            objects = await self.collect_manifests(name, namespace)
            await self.jobs.delete(name, namespace)
            await self._wait_until_deleted(job)
            await self.create(objects, namespace)
        else:
            await self.suspend(name, namespace)
            self._generation = None  # it was checked, and has changed by this
            await self._wait_until_suspended(name, namespace)
            await self.suspend(name, namespace, suspended=False)
        return await self.jobs.get(name, namespace)

    async def copy_manifests(self, name: str, new: str, namespace: str) -> list[Manifest]:
        """Return manifests for a copy of a job with another name.

        Raises:
            NoSuchJob, AmbiguousJob: as ``suspend``.
        """
        return rename_objects(
            await self.collect_manifests(name, namespace), name.rpartition("/")[2], new
        )

    async def create(self, objects: list[Manifest], namespace: str) -> dict[str, Any]:
        """Create a job, then the objects that it owns with an owner reference to it."""
        job, *belongings = objects
        created = await self.jobs.submit(job, namespace)
        for belonging in belongings:
            await self.jobs.submit(with_owner(belonging, created), namespace)
        return created

    async def _patch(self, stored: Manifest, patch: Manifest) -> None:
        """Patch an object; the UID makes the server refuse the patch if the object was replaced."""
        metadata = stored["metadata"]
        path = await self.jobs.object_path(stored)
        conditions = {"uid": metadata["uid"]}
        if self._generation is not None:
            self._check_generation(metadata)
            conditions["resourceVersion"] = metadata["resourceVersion"]
        body = {"metadata": conditions, **patch}
        await self.jobs.client.request_json(
            "PATCH", path, body=body, content_type=PatchKind.MERGE.value
        )

    def _check_generation(self, metadata: Manifest) -> None:
        """Raise Conflict if the specification has changed."""
        if metadata.get("generation") == self._generation:
            return
        message = f"the specification of {metadata['name']!r} has changed meanwhile"
        raise Conflict(Status(status="Failure", reason="Conflict", message=message, code=409))

    async def _wait_until_suspended(self, name: str, namespace: str) -> None:
        while True:
            job = await self.jobs.get(name, namespace)
            if job.state is JobState.SUSPENDED and not job.replicas:
                return
            await asyncio.sleep(_POLL_INTERVAL_S)

    async def _wait_until_deleted(self, old: Job) -> None:
        """Wait until the names of a deleted job and of its owned objects are free."""
        while True:
            try:
                if (await self.jobs.get(old.name, old.namespace)).uid != old.uid:
                    return
            except NoSuchJob:
                if not await self._owned_objects(old.name, old.namespace, old.uid):
                    return
            await asyncio.sleep(_POLL_INTERVAL_S)

    async def _owned_objects(self, name: str, namespace: str, uid: str) -> list[Manifest]:
        """Return the objects that were submitted together with a job."""
        owned: list[Manifest] = []
        for resource in _OWNED_RESOURCES:
            params = {"labelSelector": f"release={name}"}
            try:
                listing = await self.jobs.client.request_json(
                    "GET", resource.path(namespace), params=params
                )
            except (NotFound, Forbidden):
                continue
            head = {"apiVersion": resource.api_version, "kind": resource.kind}
            owned += [head | item for item in listing["items"] if _is_owned(item, uid)]
        return owned


def _is_owned(stored: Manifest, uid: str) -> bool:
    """True if an object was submitted with the job; objects of the operator are recreated by it."""
    metadata = stored["metadata"]
    owners = metadata.get("ownerReferences") or []
    marked = OWNER_ANNOTATION in (metadata.get("annotations") or {})
    return marked and any(owner["uid"] == uid for owner in owners)
