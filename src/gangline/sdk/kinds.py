"""The kinds of training jobs, as the SDK uses them, and jobs with only the fields that lists read.

``api.job_resources`` has the table of kinds. A list decodes jobs of every kind to ``ListedJob``, so
that the types of the kinds are neither built nor filled.
"""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any

import msgspec

from gangline.api.job_resources import JOB_KINDS, POD_GROUPS, find_job_kind
from gangline.api.jobs.kind import JobKind, JobObject, ReplicaSpecLike
from gangline.api.meta.objects import Wire
from gangline.api.meta.resource import Resource
from gangline.sdk.lean_pods import ListedCondition, ListedMeta

__all__ = [
    "JOB_KINDS",
    "LISTED_GROUPS",
    "JobKind",
    "JobObject",
    "ListedJob",
    "ListedPodGroup",
    "ListedTemplate",
    "ReplicaSpecLike",
    "find_job_kind",
    "listed_resource",
]


class ListedJobMeta(Wire):
    """Identity of a job."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    creation_timestamp: datetime | None = None


class ListedAmounts(Wire):
    """Requests and limits of a container of a template, as the user wrote them."""

    requests: dict[str, Any] | None = None
    limits: dict[str, Any] | None = None


class ListedTemplateContainer(Wire):
    """A container of a template."""

    resources: ListedAmounts | None = None


class ListedTemplateSpec(Wire):
    """The pod of a template."""

    containers: tuple[ListedTemplateContainer, ...] | None = None


class ListedTemplate(Wire):
    """A pod template."""

    spec: ListedTemplateSpec | None = None


class ListedReplicaSpec(Wire):
    """The pods of one role."""

    replicas: int | None = None
    template: ListedTemplate = ListedTemplate()


class ListedSchedulingPolicy(Wire):
    """Queue and priority of a job."""

    queue: str = ""
    priority_class: str = ""


class ListedRunPolicy(Wire):
    """What lists show of a run policy."""

    scheduling_policy: ListedSchedulingPolicy | None = None
    managed_by: str | None = None


class ListedJobCondition(ListedCondition):
    """A condition of a job."""

    last_transition_time: datetime | None = None


class ListedRestarts(Wire):
    """The restarts of a job."""

    total: int = 0


class ListedValidSpec(Wire):
    """The specification by which an invalid job runs."""

    spec: str = ""


class ListedMetric(Wire):
    """A metric that a training has reported."""

    name: str = ""
    value: str = ""


class ListedTrainerStatus(Wire):
    """What a training has reported last."""

    progress_percentage: int | None = None
    estimated_remaining_seconds: int | None = None
    metrics: tuple[ListedMetric, ...] = ()
    last_updated_time: datetime | None = None


class ListedJobStatus(Wire):
    """The state of a job."""

    conditions: tuple[ListedJobCondition, ...] = ()
    start_time: datetime | None = None
    completion_time: datetime | None = None
    restarts: ListedRestarts = ListedRestarts()
    last_valid_spec: ListedValidSpec | None = None
    trainer_status: ListedTrainerStatus | None = None


class ListedJobSpec(Wire):
    """The parts of a specification that all kinds share; ``ListedJob`` adds the roles."""

    run_policy: ListedRunPolicy = ListedRunPolicy()
    scheduling_policy: ListedSchedulingPolicy | None = None


class ListedGroupStatus(Wire):
    """The state of a gang."""

    conditions: tuple[ListedCondition, ...] = ()


class ListedPodGroup(Wire):
    """A pod group with the fields that lists read."""

    metadata: ListedMeta = ListedMeta()
    status: ListedGroupStatus = ListedGroupStatus()


LISTED_GROUPS: Resource[ListedPodGroup] = Resource(
    ListedPodGroup, POD_GROUPS.group, POD_GROUPS.version, POD_GROUPS.plural, POD_GROUPS.kind
)


def _role_fields() -> Iterator[tuple[str, Any, Any]]:
    """Yield name, type and default of each field of a specification that has roles."""
    in_maps = {kind.replica_specs_field for kind in JOB_KINDS if kind.replica_specs_field}
    for name in sorted(in_maps):
        yield name, dict[str, ListedReplicaSpec], {}
    for kind in JOB_KINDS:
        if not (kind.replica_specs_field or kind.has_runtime):
            yield from ((role, ListedReplicaSpec | None, None) for role in kind.roles)


_SPEC: Any = msgspec.defstruct(
    "ListedSpec", list(_role_fields()), bases=(ListedJobSpec,), frozen=True, rename="camel"
)
ListedJob: Any = msgspec.defstruct(
    "ListedJob",
    [
        ("metadata", ListedJobMeta, ListedJobMeta()),
        ("spec", _SPEC, _SPEC()),
        ("status", ListedJobStatus, ListedJobStatus()),
    ],
    bases=(Wire,),
    frozen=True,
)
"""A job of any kind with the fields that lists read; ``JobKind`` finds its roles."""


def listed_resource(kind: JobKind) -> Resource[Any]:
    """Return the resource of a kind for lists: of ``ListedJob``, or of bytes.

    Roles in another object are read from fields that only the type of that kind has. It is built
    when there is such a job.
    """
    return replace(kind.resource, type=msgspec.Raw if kind.has_runtime else ListedJob)
