"""What a job runs after its runtime and its patches are merged."""

from typing import Any

import msgspec

from gangline.api.job_resources import CLUSTER_TRAINING_RUNTIMES, TRAIN_JOBS, TRAINING_RUNTIMES
from gangline.api.jobs.training_runtime import (
    RUNTIME_COPY_KEY,
    TRAINING_RUNTIME,
    TrainingRuntimeSpec,
    runtime_copy_name,
)
from gangline.api.resources import CONFIG_MAPS
from gangline.api.trainer.effective import EffectiveJob
from gangline.api.trainer.policy import effective_job
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import NotFound
from gangline.sdk.client import JobError
from gangline.sdk.jobs import Job


class _Runtime(msgspec.Struct):
    spec: TrainingRuntimeSpec = TrainingRuntimeSpec()


async def effective_manifest(client: ApiClient, job: Job) -> dict[str, Any]:
    """Return the replicated jobs of a TrainJob with their final pod templates.

    The runtime is the copy that the operator stored for the job, or the present one before that.

    Raises:
        JobError: the job is of another kind, or its runtime does not exist.
    """
    if job.kind.resource is not TRAIN_JOBS:
        message = f"{job.qualified_name} has no runtime: 'gangline get --spec' prints what it runs"
        raise JobError(message)
    found = await client.get(TRAIN_JOBS, job.name, job.namespace)
    ref = found.spec.runtime_ref
    spec, source = await _runtime_spec(client, job, ref.kind, ref.name)
    return _describe(effective_job(found, spec), source)


async def _runtime_spec(
    client: ApiClient, job: Job, kind: str, name: str
) -> tuple[TrainingRuntimeSpec, str]:
    copy = runtime_copy_name(job.name)
    try:
        stored = await client.get(CONFIG_MAPS, copy, job.namespace)
    except NotFound:
        stored = None
    owner = stored.metadata.controller if stored else None
    if stored and owner and owner.uid == job.uid and RUNTIME_COPY_KEY in stored.data:
        text = stored.data[RUNTIME_COPY_KEY]
        return msgspec.json.decode(text, type=_Runtime).spec, f"configmap/{copy}"
    try:
        if kind == TRAINING_RUNTIME:
            own = await client.get(TRAINING_RUNTIMES, name, job.namespace)
            return own.spec, f"{TRAINING_RUNTIMES.plural}/{name}"
        shared = await client.get(CLUSTER_TRAINING_RUNTIMES, name)
    except NotFound as error:
        message = f"the runtime of {job.qualified_name} does not exist: {kind} {name!r}"
        raise JobError(message) from error
    return shared.spec, f"{CLUSTER_TRAINING_RUNTIMES.plural}/{name}"


def _describe(job: EffectiveJob, source: str) -> dict[str, Any]:
    return {
        "name": job.name,
        "runtime": source,
        "framework": job.framework,
        "nodes": job.nodes,
        "replicatedJobs": [
            {
                "name": role.name,
                "replicas": role.replicas,
                **({"step": role.step} if role.step else {}),
                **({"dependsOn": msgspec.to_builtins(role.depends_on)} if role.depends_on else {}),
                "template": role.template,
            }
            for role in job.roles
        ],
    }
