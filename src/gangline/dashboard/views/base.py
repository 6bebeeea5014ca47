"""What every view is computed from: the observed cluster as one viewer sees it, at one time."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Self

import msgspec
from msgspec import UNSET

from gangline.api.brain.job_advice import OWNER_ANNOTATION
from gangline.dashboard.observed import ClusterSnapshot, JobSnapshot
from gangline.dashboard.rights import EVENT_KIND, GROUP_KIND, POD_KIND, Scope
from gangline.sdk.events import EventRecord, read_events
from gangline.sdk.jobs import Job, JobState


class View(msgspec.Struct, frozen=True, rename="camel"):
    """Base of all views; the wire form has camelCase names."""

    @classmethod
    def of(cls, source: object, **others: Any) -> Self:
        """Return the view with the attributes of an object, or the values of a mapping, that have
        the names of its fields.
        """
        read = source.get if isinstance(source, Mapping) else partial(getattr, source)
        for name in cls.__struct_fields__:
            if name not in others and (value := read(name, UNSET)) is not UNSET:
                others[name] = value
        return cls(**others)


class JobRow(View, frozen=True):
    namespace: str
    kind: str
    name: str
    state: JobState
    owner: str = ""
    queue: str = ""
    priority: str = ""
    reason: str = ""
    running: int = 0
    desired: int = 0
    requested_gpus: int = 0
    allocated_gpus: int = 0
    restarts: int = 0
    progress: str = ""
    """Percentage and time left, as far as its training reports them."""
    step: int | None = None
    goodput: float | None = None
    """Productive fraction of its time; None if nothing accounts for it."""
    created: datetime | None = None
    started: datetime | None = None
    finished: datetime | None = None

    @property
    def path(self) -> str:
        return f"/jobs/{self.namespace}/{self.kind}/{self.name}"


@dataclass(frozen=True, slots=True)
class SeenJob:
    """A job as a viewer sees it. Lists of thousands read its fields, which are computed once."""

    entry: JobSnapshot
    job: Job
    namespace: str
    kind: str
    state: str
    owner: str
    """Its owner, by the annotation; empty if it names none."""
    queue: str
    """Its queue; that of its pod group, if the job names none."""
    place: tuple[Any, ...]
    """Its place in lists, where the newest job is the first."""

    @classmethod
    def of(cls, entry: JobSnapshot, job: Job) -> Self:
        owner = str(entry.stored.metadata.annotations.get(OWNER_ANNOTATION, ""))
        kind, queue = job.kind.trainer, job.queue or "default"
        place = (-job.created.timestamp(), job.namespace, job.name, kind)
        return cls(entry, job, job.namespace, kind, str(job.state), owner, queue, place)

    def row(self) -> JobRow:
        job = self.job
        return JobRow.of(
            job,
            kind=self.kind,
            owner=self.owner,
            queue=self.queue,
            progress=job.progress.summary if job.progress else "",
            started=started(job),
        )


def started(job: Job) -> datetime | None:
    """When the job started; None while it waits. Its own start time is that of its acceptance."""
    return None if job.state in (JobState.PENDING, JobState.QUEUING) else job.started


@dataclass(frozen=True, slots=True)
class Observation:
    """The observed cluster, the viewer, and the time."""

    cluster: ClusterSnapshot
    scope: Scope
    now: datetime
    viewer: str = ""
    """Name of the viewer, whose jobs come first; empty: unknown."""

    def jobs(self) -> Iterator[SeenJob]:
        visible: dict[tuple[str, str], bool] = {}
        sees_owned = self.scope.sees_all(POD_KIND) and self.scope.sees_all(GROUP_KIND)
        for (namespace, kind, _), entry in list(self.cluster.by_key.items()):
            if (is_visible := visible.get((namespace, kind))) is None:
                is_visible = visible[namespace, kind] = self.scope.sees_job(entry.kind, namespace)
            if is_visible:
                yield (sees_owned and entry.shown) or self.see(entry)

    def see(self, entry: JobSnapshot) -> SeenJob:
        """Return a job with those of its objects that the viewer may list."""
        namespace, sees = entry.stored.metadata.namespace, self.scope.sees
        pods, groups = sees(POD_KIND, namespace), sees(GROUP_KIND, namespace)
        job = self.cluster.job(entry, pods=pods, groups=groups)
        if job is not entry.built:
            return SeenJob.of(entry, job)
        shown: SeenJob = entry.shown or SeenJob.of(entry, job)
        entry.shown = shown
        return shown

    def events(self, job: Job) -> list[EventRecord]:
        """Return the events of a job, the oldest first; none if the viewer may not list them."""
        if not self.scope.sees(EVENT_KIND, job.namespace):
            return []
        return read_events(self.cluster.events.get(job.namespace, {}).values(), job)
