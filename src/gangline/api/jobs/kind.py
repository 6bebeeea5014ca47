"""The description of a job kind, which every package reads from one table (``job_resources``).

All versions of a kind have one definition and no conversion webhook, so ``apiVersion`` of a stored
job does not show in which version its user wrote it. The first of these does:

1. an annotation, which the operator writes when it first observes the job;
2. the oldest entry of ``managedFields``: its writer created the job;
3. the version of the request, or of storage.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol, cast

import msgspec

from gangline.api.meta.json_objects import subobject
from gangline.api.meta.objects import Wire
from gangline.api.meta.resource import Resource

if TYPE_CHECKING:
    from gangline.api.jobs.kubeflow import CommonRunPolicy, JobStatus, SchedulingPolicy
    from gangline.api.meta.objects import ObjectMeta


class ReplicaSpecLike(Protocol):
    """Replica spec of one role, of any kind of job."""

    @property
    def replicas(self) -> int | None:
        """Number of pods; None means 1."""

    @property
    def template(self) -> Mapping[str, Any]:
        """Pod template."""


class _Spec(Protocol):
    @property
    def run_policy(self) -> "CommonRunPolicy": ...


class JobObject(Protocol):
    """A stored job of any kind. ``JobKind.status`` reads its status."""

    @property
    def metadata(self) -> "ObjectMeta": ...

    @property
    def spec(self) -> _Spec: ...

    @property
    def status(self) -> Any: ...


class RunsFromTemplate(Protocol):
    """A job whose roles are in another object, and whose status has another form."""

    def replica_specs(self) -> Mapping[str, ReplicaSpecLike]:
        """Return the roles as far as they are known, the leading role first."""

    def common_status(self) -> "JobStatus":
        """Return the status in the form that other kinds have."""


@dataclass(frozen=True, slots=True)
class JobKind:
    """A kind of training job."""

    resource: Resource[Any]
    module: str
    """Name of its modules in ``api.jobs``, ``api.validation.jobs`` and ``operator.frameworks``."""
    short_name: str
    """Its short name for kubectl."""
    roles: tuple[str, ...]
    """Its roles, the leading role first."""
    replica_specs_field: str = ""
    """Attribute of the spec with the roles; empty if each role has an attribute of its own."""
    has_runtime: bool = False
    """True if its roles are in another object, as ``RunsFromTemplate`` describes."""
    is_scalable: bool = False
    """True if ``kubectl scale`` changes its workers."""
    other_names: tuple[str, ...] = ()
    """Further names that commands accept."""
    other_versions: tuple[str, ...] = ()
    """Further versions in which it is served, with the schema of the first."""
    is_named_with_group: bool = False
    """True if an earlier kind of the table has the same name in another group."""
    suspend_path: tuple[str, ...] = ("spec", "runPolicy", "suspend")
    """The field that suspends a job."""

    @property
    def identity(self) -> str:
        """Its name, which no other kind has: ``PyTorchJob``, or ``PaddleJob.kubeflow.org``."""
        kind = self.resource.kind
        return f"{kind}.{self.resource.group}" if self.is_named_with_group else kind

    @property
    def api_versions(self) -> tuple[str, ...]:
        """Every ``apiVersion`` of the kind, that of storage first."""
        group = self.resource.group
        return self.resource.api_version, *(f"{group}/{name}" for name in self.other_versions)

    @property
    def roles_path(self) -> tuple[str, ...]:
        """The field of a manifest with the roles, for kinds that have one."""
        first, *others = self.replica_specs_field.split("_")
        return "spec", first + "".join(map(str.capitalize, others))

    @property
    def scale_path(self) -> tuple[str, ...]:
        """The field of a manifest that ``kubectl scale`` changes, for kinds that are scalable."""
        worker = next(role for role in self.roles if role.lower() == "worker")
        return *self.roles_path, worker, "replicas"

    @property
    def trainer(self) -> str:
        """Its name in lists and flags: ``pytorchjob``."""
        return self.identity.lower()

    @property
    def aliases(self) -> frozenset[str]:
        """Names in lower case: ``pytorchjob``, ``pytorch``, ``py``, ``pytorchjobs.kubeflow.org``.

        As in kubectl, a name without a group means the earliest kind of that name.
        """
        kind, plural = self.resource.kind.lower(), self.resource.plural
        full = {f"{name}.{self.resource.group}" for name in (kind, plural)}
        short = set() if self.is_named_with_group else {kind, plural, kind.removesuffix("job")}
        return frozenset(full | short | {self.short_name, *self.other_names})

    def replica_specs(self, job: JobObject) -> Mapping[str, ReplicaSpecLike]:
        """Return replica specs by the canonical name of the role, the leading role first."""
        if self.has_runtime:
            return cast(RunsFromTemplate, job).replica_specs()
        if self.replica_specs_field:
            written: Mapping[str, ReplicaSpecLike] = getattr(job.spec, self.replica_specs_field)
        else:
            written = {role: getattr(job.spec, role) for role in self.roles}
        specs = {name.lower(): spec for name, spec in written.items() if spec is not None}
        return {role: specs[role.lower()] for role in self.roles if role.lower() in specs}

    def status(self, job: JobObject) -> "JobStatus":
        """Return the status of a job in the form that all kinds share."""
        status: JobStatus = (
            cast(RunsFromTemplate, job).common_status() if self.has_runtime else job.status
        )
        return status

    @staticmethod
    def scheduling_policy(job: JobObject) -> "SchedulingPolicy | None":
        """Return the settings for the gang scheduler; some kinds have them in the spec."""
        policy: SchedulingPolicy | None = getattr(job.spec.run_policy, "scheduling_policy", None)
        return policy or getattr(job.spec, "scheduling_policy", None)


VERSION_ANNOTATION = "gangline.dev/api-version"
"""On a job of a kind with several versions: the ``apiVersion`` in which it was written."""

_LATEST = datetime.max.replace(tzinfo=UTC)


class FieldsEntry(Wire):
    """Who wrote fields of an object: one entry of ``managedFields``, without the fields."""

    api_version: str = ""
    time: datetime | None = None
    subresource: str = ""


def original_api_version(
    kind: JobKind,
    api_version: str,
    annotations: Mapping[str, str],
    managed_fields: Sequence[FieldsEntry],
) -> str:
    """Return the ``apiVersion`` in which a job was written; ``api_version`` is the request's."""
    if not kind.other_versions:
        return api_version
    if (stored := annotations.get(VERSION_ANNOTATION)) in kind.api_versions:
        return stored
    entries = [entry for entry in managed_fields if entry.api_version in kind.api_versions]
    # Times have a resolution of one second; a subresource is never written first.
    oldest = min(entries, key=lambda e: (e.time or _LATEST, bool(e.subresource)), default=None)
    return oldest.api_version if oldest else api_version


def original_version_of(kind: JobKind, manifest: Mapping[str, Any]) -> str:
    """Return ``original_api_version`` of plain data; malformed metadata counts as absent."""
    metadata = subobject(manifest, "metadata")
    try:
        entries = msgspec.convert(metadata.get("managedFields") or [], list[FieldsEntry])
    except msgspec.ValidationError:
        entries = []
    written = str(manifest.get("apiVersion", ""))
    return original_api_version(kind, written, subobject(metadata, "annotations"), entries)
