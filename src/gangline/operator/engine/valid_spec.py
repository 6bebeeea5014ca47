"""The last valid specification of a job, which stays in force while the present one is invalid.

A specification becomes invalid if it is edited while no webhook responds, or if a newer operator
has stricter rules. The job must not stop for that: its success, deadline, suspension and clean-up
are decided as before.

1. The status records each valid specification, compressed, with the generation of the job. Users
   cannot edit a status by ``kubectl apply``, and a restarted operator reads it again.
2. An invalid specification changes nothing but whether the job is suspended.
3. Without a record (it was too large, the cluster's CRD drops it, or it was never written) a job
   that has started continues with the present specification and the replicas that it has.

A job that was never valid is only reported.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace

import msgspec

from gangline.api.jobs.kubeflow import JobStatus, ValidSpec
from gangline.api.jobs.spec_record import pack_spec, unpack_spec
from gangline.api.meta.json_objects import subobject
from gangline.operator.model import labels
from gangline.operator.model.framework import ParsedJob
from gangline.operator.model.job import NormalizedJob, RawJob
from gangline.operator.model.replicas import ObservedPod, parse_indexes

MAX_RECORD_BYTES = 64 << 10
"""A longer record is not stored: a status and its specification share the size of one object."""


def record_spec(stored: RawJob, before: ValidSpec | None) -> ValidSpec:
    """Return the record of a valid specification; ``before`` if it is of this generation."""
    generation = stored.metadata.generation
    if before is not None and generation and before.generation == generation:
        return before
    text = pack_spec(memoryview(stored.spec))
    return ValidSpec(generation, text if len(text) <= MAX_RECORD_BYTES else "")


def job_in_force(
    stored: RawJob,
    present: ParsedJob,
    status: JobStatus,
    pods: Iterable[ObservedPod],
    read: Callable[[RawJob], ParsedJob],
) -> tuple[NormalizedJob, bool]:
    """Return the job to reconcile, and whether it is made from an earlier specification.

    ``present`` is the reading of the stored specification, ``read`` reads another one.
    """
    if not present.spec_errors:
        return present.job, False
    earlier = _recorded_job(stored, status, read)
    if earlier is None and present.job.roles and status.start_time is not None:
        earlier = _with_observed_replicas(present.job, status, pods)
    if earlier is None:
        return present.job, False
    suspended = present.job.policy.suspended or _is_suspended(stored, present.job)
    return replace(earlier, policy=replace(earlier.policy, suspended=suspended)), True


def _recorded_job(
    stored: RawJob, status: JobStatus, read: Callable[[RawJob], ParsedJob]
) -> NormalizedJob | None:
    text = unpack_spec(status.last_valid_spec.spec) if status.last_valid_spec else None
    if text is None:
        return None
    # Stricter rules of a newer operator may refuse it: it was valid when the job started.
    job = read(msgspec.structs.replace(stored, spec=msgspec.Raw(text))).job
    return job if job.roles else None


def _with_observed_replicas(
    job: NormalizedJob, status: JobStatus, pods: Iterable[ObservedPod]
) -> NormalizedJob:
    """Return the job with as many replicas of each role as there are, or have succeeded."""
    sizes: defaultdict[str, int] = defaultdict(int)
    for pod in pods:
        if parsed := labels.parse_replica_labels(pod.metadata):
            role, index = parsed
            sizes[role] = max(sizes[role], index + 1)
    for role, counted in status.replica_statuses.items():
        completed = parse_indexes(counted.completed_indexes)
        sizes[role.lower()] = max(sizes[role.lower()], *(index + 1 for index in completed), 0)
    roles = [
        replace(
            role,
            replicas=min(role.replicas, sizes[role.label]),
            min_replicas=min(role.min_replicas, sizes[role.label]),
        )
        for role in job.roles
    ]
    return replace(job, roles=roles)


def _is_suspended(stored: RawJob, job: NormalizedJob) -> bool:
    """Return whether a specification that cannot be decoded suspends the job."""
    *parents, field = job.kind.entry.suspend_path
    try:
        written = {"spec": msgspec.json.decode(stored.spec)}
    except msgspec.DecodeError:
        return False
    return subobject(written, *parents).get(field) is True
