"""Job controller: watches Jobs and their pods, builds the pods, and executes the plan."""

import asyncio
import contextlib
from collections.abc import Iterable
from copy import deepcopy
from typing import Any

from gangline.api.core.pod import Pod
from gangline.api.resources import PODS
from gangline.kube.errors import NotFound
from gangline.kube.informers.informer import ObjectKey, object_key
from gangline.local.controllers.context import (
    ControllerContext,
    complete_status,
    current_time,
    owner_uids,
    patch_metadata,
    patch_status,
    seconds_until,
)
from gangline.local.controllers.jobs.plan import (
    FINALIZER,
    RAW_BATCH_JOBS,
    BackoffRecord,
    JobPlan,
    RawBatchJob,
    RawBatchJobStatus,
    plan_job,
)
from gangline.local.controllers.jobs.policies import FAILURE_COUNT, INDEX
from gangline.local.controllers.replica_sets.controller import OwnerLoop
from gangline.local.controllers.replica_sets.plan import controller_reference

_INDEX_VARIABLE = "JOB_COMPLETION_INDEX"


def build_job_pod(
    job: RawBatchJob, index: int | None, failures: int | None = None
) -> dict[str, Any]:
    """Return the manifest of a pod, with ``index`` for a Job in the mode Indexed, and with the
    ``failures`` of this index if there is a limit for each.
    """
    template = deepcopy(job.spec.template)
    given, name = template.get("metadata") or {}, job.metadata.name
    labels = dict(given.get("labels") or {})
    for key, value in (("controller-uid", job.metadata.uid), ("job-name", name)):
        labels[key] = labels[f"batch.kubernetes.io/{key}"] = value
    annotations = dict(given.get("annotations") or {})
    spec = template.get("spec") or {}
    prefix = f"{name}-"
    if index is not None:
        prefix = f"{name}-{index}-"
        labels[INDEX] = annotations[INDEX] = str(index)
        if failures is not None:
            annotations[FAILURE_COUNT] = str(failures)
        spec.setdefault("hostname", f"{name}-{index}")
        for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
            _add_index_variable(container)
    metadata: dict[str, Any] = {
        "generateName": prefix,
        "namespace": job.metadata.namespace,
        "labels": labels,
        "finalizers": [*(given.get("finalizers") or ()), FINALIZER],
        "ownerReferences": [controller_reference(RAW_BATCH_JOBS, job)],
    }
    if annotations:
        metadata["annotations"] = annotations
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _add_index_variable(container: dict[str, Any]) -> None:
    env = container.setdefault("env", [])
    if all(variable.get("name") != _INDEX_VARIABLE for variable in env):
        source = {"fieldRef": {"fieldPath": f"metadata.labels['{INDEX}']"}}
        env.append({"name": _INDEX_VARIABLE, "valueFrom": source})


BY_JOB = "job"
"""Index of pods by the namespace and name of their Job, which may not exist any more."""


def _job_of(pod: Pod) -> Iterable[str]:
    owner = pod.metadata.controller
    if (
        owner is None
        or owner.kind != RAW_BATCH_JOBS.kind
        or owner.api_version != RAW_BATCH_JOBS.api_version
    ):
        return []
    return [f"{pod.metadata.namespace}/{owner.name}"]


ORPHANS = "orphans"
"""Index of pods without a controller by namespace."""


def _namespace_of_orphan(pod: Pod) -> Iterable[str]:
    return [] if pod.metadata.controller is not None else [pod.metadata.namespace]


class JobController(OwnerLoop):
    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context, RAW_BATCH_JOBS)
        self._jobs = context.informers.informer(RAW_BATCH_JOBS)
        self._pods = context.informers.informer(
            PODS, indexes={BY_JOB: _job_of, ORPHANS: _namespace_of_orphan}
        )
        self._backoff: dict[str, BackoffRecord] = {}
        """By uid. Kept in memory only, as in Kubernetes: a restart forgets delays."""
        self._queue = self._add_queue("jobs", self._reconcile)
        self._jobs.add_listener(self._job_changed)
        self._pods.add_listener(self._pod_changed)

    def _job_changed(self, old: RawBatchJob | None, new: RawBatchJob | None) -> None:
        job = new or old
        assert job is not None
        if new is None:
            self._backoff.pop(job.metadata.uid, None)
        self._queue.add(object_key(job))

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        for pod in (old, new):
            for key in _job_of(pod) if pod is not None else ():
                self._queue.add(ObjectKey(*key.split("/")))
        labels = new.metadata.labels if new is not None and not list(_job_of(new)) else {}
        if new is not None and (name := labels.get("batch.kubernetes.io/job-name")):
            self._queue.add(ObjectKey(new.metadata.namespace, name))

    async def _reconcile(self, key: ObjectKey) -> float | None:
        job = self._jobs.get(key.namespace, key.name)
        pods = self._pods.by_index(BY_JOB, f"{key.namespace}/{key.name}")
        if job is not None and not job.is_managed_here:
            return None
        uid = job.metadata.uid if job is not None else ""
        own = [pod for pod in pods if owner_uids(pod) == [uid]]
        # The finalizer of a pod whose Job is gone has nothing to wait for.
        await self._release([pod for pod in pods if pod not in own])
        if job is None:
            self._expected.forget(key)
            return None
        ended = job.status.completion_time is not None
        orphans = () if ended else self._pods.by_index(ORPHANS, key.namespace)
        if await self._claim(job, PODS, [*own, *orphans], finalizer=FINALIZER):
            return None  # The watch delivers the change and triggers another pass.
        now = current_time()
        backoff = self._backoff.get(uid, BackoffRecord())
        plan = plan_job(job, self._expected.apply(key, own), backoff, now)
        # Also before the write: a repeated pass must not count a failure again.
        if plan.status != job.status:
            await self._write_status(job, plan.status)
        self._backoff[uid] = plan.backoff
        for event in plan.events:
            self._note(job, *event)
        await self._execute(key, job, plan)
        return seconds_until(plan.requeue_at)

    async def _execute(self, key: ObjectKey, job: RawBatchJob, plan: JobPlan) -> None:
        await self._release(plan.release)
        await self._release(plan.withdraw)
        for pod in (*plan.delete, *plan.withdraw):
            await self._delete_pod(job, pod)
        failures = plan.failures
        bodies = [
            build_job_pod(job, index, None if failures is None else failures.get(index or 0, 0))
            for index in plan.create
        ]
        await self._create_pods(key, job, bodies)
        if plan.delete_job:
            with contextlib.suppress(NotFound):
                await self._client.delete(
                    RAW_BATCH_JOBS,
                    key.name,
                    key.namespace,
                    propagation="Foreground",
                    uid=job.metadata.uid,
                )

    async def _release(self, pods: Iterable[Pod]) -> None:
        held = [pod for pod in pods if FINALIZER in pod.metadata.finalizers]
        await asyncio.gather(*map(self._remove_finalizer, held))

    async def _remove_finalizer(self, pod: Pod) -> None:
        left = [finalizer for finalizer in pod.metadata.finalizers if finalizer != FINALIZER]
        await patch_metadata(self._client, PODS, pod, finalizers=left or None)

    async def _write_status(self, job: RawBatchJob, status: RawBatchJobStatus) -> None:
        """Write the status if the Job is still the one that was read. Raises Conflict: it has
        changed: counts that are based on it could be wrong.
        """
        body = complete_status(status)
        body["uncountedTerminatedPods"] = complete_status(status.uncounted_terminated_pods)
        patch = {"metadata": {"resourceVersion": job.metadata.resource_version}, "status": body}
        await patch_status(self._client, RAW_BATCH_JOBS, job, patch)
