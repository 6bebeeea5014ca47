"""Watches everything that the history is made of, and joins it by job.

The listeners of the informers only digest objects into ``JobObservations``; everything slow (the
database, advice) happens elsewhere, on what ``changed_runs`` returns. Jobs in a namespace with the
label ``gangline.dev/brain: off`` are not digested, and forgotten when the label is set later.
"""

import asyncio
import contextlib
import logging
import operator
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from msgspec.structs import replace

from gangline.api.brain.job_advice import BRAIN_ANNOTATION
from gangline.api.core.core import ConfigMap, Namespace
from gangline.api.core.node import Node
from gangline.api.core.pod import Pod
from gangline.api.core.pod_status import TERMINAL_PHASES
from gangline.api.job_names import INDEX_LABEL, RELAUNCH_COUNT_LABEL, ROLE_LABEL
from gangline.api.job_resources import JOB_KINDS
from gangline.api.jobs.elastic import PS, ScalePlan
from gangline.api.jobs.kind import JobKind
from gangline.api.jobs.training_facts import FACTS_KEY, FACTS_LABEL
from gangline.api.meta.field_doc import ResourceList
from gangline.api.meta.objects import Object, ObjectMeta
from gangline.api.quantity import QuantityError
from gangline.api.resource_list import CPU, GPU, MEMORY, pod_request_for
from gangline.api.resources import (
    CONFIG_MAPS,
    NAMESPACES,
    NODES,
    POD_GROUPS,
    PODS,
    QUEUES,
    SCALE_PLANS,
)
from gangline.api.volcano.scheduling import GROUP_NAME_ANNOTATION, PodGroup, Queue
from gangline.brain.advisers.advice import What
from gangline.brain.collection.job_digest import (
    MODEL_LABELS,
    RANK_LABEL,
    DigestSettings,
    digest_job,
    digest_pod,
    end_of_deleted,
    parsed_amount,
    pod_limits,
)
from gangline.brain.collection.live_facts import JobObservations, NodeSize, digest_facts
from gangline.brain.collection.measurements import (
    POLL_S,
    SEGMENT_S,
    PodSample,
    ReportedStep,
    SampleBuffer,
    ServerTable,
    StepProgress,
    poll_usage,
    reported_step,
)
from gangline.brain.facts.records import MemorySample, NodeCapacity, Outcome, Run
from gangline.kube.client.client import ApiClient
from gangline.kube.informers.informer import Informer
from gangline.kube.turns import Turns


def digest_node(node: Node, gpus_used: int) -> NodeCapacity:
    """Return the capacity of a node. A cordoned node has no free devices."""
    labels = node.metadata.labels
    gpus, cpu, memory = _amounts(node.status.allocatable, GPU, CPU, MEMORY)
    return NodeCapacity(
        name=node.metadata.name,
        gpu_model=next((labels[key] for key in MODEL_LABELS if key in labels), ""),
        gpus=gpus,
        gpus_free=0 if node.spec.unschedulable else max(0, gpus - gpus_used),
        cpu_millis=cpu,
        memory_bytes=memory,
    )


def _amounts(written: ResourceList, *resources: str) -> Iterator[int]:
    return (max(0, parsed_amount(name, written.get(name)) or 0) for name in resources)


def requests_by_node(pods: Iterable[Pod], *resources: str) -> dict[str, list[int]]:
    """Return how much of each resource bound pods request, in the smallest units, by node."""
    used: dict[str, list[int]] = {}
    for pod in pods:
        if pod.spec.node_name and pod.status.phase not in TERMINAL_PHASES:
            with contextlib.suppress(QuantityError):
                asked = [pod_request_for(pod.spec, name) for name in resources]
                sums = used.get(pod.spec.node_name, [0] * len(resources))
                used[pod.spec.node_name] = [*map(operator.add, sums, asked)]
    return used


log = logging.getLogger(__name__)

WATCHED_FROM_START_S = 120.0
"""A job that is first observed at most this long after its creation was watched from its start."""
RETAIN_ENDED_S = 600.0
"""Ended jobs stay in memory for so long, because late reports of their pods arrive."""
MEMORY_SAMPLES = 720
"""Memory samples of one rank that are retained: six hours at one in 30 seconds."""

JobListener = Callable[[JobKind, Any, Any], None]
"""Is called with a job before and after each change, None as in ``Informer``; never with jobs of
excluded namespaces."""
UsageListener = Callable[[str, Sequence[PodSample]], None]
"""Is called with the uid of a job and the readings of its pods."""


_KEPT_LABELS = (ROLE_LABEL, INDEX_LABEL, RANK_LABEL, RELAUNCH_COUNT_LABEL)


def slim_pod(pod: Pod) -> Pod:
    """Keep what digestion reads. Thousands of pods are in memory at one time."""
    labels = pod.metadata.labels
    kept = {key: labels[key] for key in _KEPT_LABELS if key in labels}
    groups = pod.metadata.annotations.get(GROUP_NAME_ANNOTATION, "")
    meta = replace(
        pod.metadata,
        labels=kept,
        annotations={GROUP_NAME_ANNOTATION: groups} if groups else {},
        finalizers=[],
    )
    containers = [
        type(container)(name=container.name, resources=container.resources)
        for container in pod.spec.containers
    ]
    spec = type(pod.spec)(containers=containers, node_name=pod.spec.node_name)
    return replace(pod, metadata=meta, spec=spec)


@dataclass(slots=True)
class WatchedJob:
    """A job in memory: its observations, and what advice on it needs beside them."""

    kind: JobKind
    meta: ObjectMeta
    """Metadata of the stored job."""
    observations: JobObservations
    problems: tuple[str, ...] = ()
    """Mistakes in the annotations of the job."""
    stored: Object | None = None
    """The job as stored; None after its deletion."""
    memory: dict[tuple[str, int], list[MemorySample]] = field(default_factory=dict)
    servers: ServerTable = field(default_factory=ServerTable)
    tunes_batch: bool = False
    ended_at: float | None = None
    """Monotonic time at which it had ended."""

    def tunable(self) -> frozenset[What]:
        """Return the fields whose tuning the job applies, as its master reports."""
        fields = {What.MICRO_BATCH, What.LOADER_WORKERS} if self.tunes_batch else set()
        segments = self.observations.segments
        if segments and segments[max(segments)].saves_adapt:
            fields.add(What.CHECKPOINT_INTERVAL)
        return frozenset(fields)


class Collector:
    """The watches, and what they have shown. Start ``run`` in a task; wait for ``synced``."""

    def __init__(
        self,
        client: ApiClient,
        settings: DigestSettings,
        namespaces: tuple[str, ...] = (),
        usage_s: float = POLL_S,
        segment_s: float = SEGMENT_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client, self._settings, self._clock = client, settings, clock
        self._usage_s, self._segment_ms = usage_s, round(1000 * segment_s)
        self.jobs: dict[str, WatchedJob] = {}
        """By uid."""
        self.dropped_facts = 0
        """Entries of facts that were not believed."""
        self._changed: set[str] = set()
        self._known: frozenset[str] = frozenset()
        self._excluded: set[str] = set()
        self._job_listeners: list[JobListener] = []
        self._usage_listeners: list[UsageListener] = []
        scope = list(namespaces) or None
        self._kinds = [(kind, Informer[Any](client, kind.resource, scope)) for kind in JOB_KINDS]
        by_job: dict[str, Callable[[Any], list[str]]] = {
            "job": lambda item: [_controller_uid(item)]
        }
        self.pods: Informer[Pod] = Informer(
            client, PODS, scope, labels=ROLE_LABEL, transform=slim_pod, indexes=by_job
        )
        self._nodes: Informer[Node] = Informer(client, NODES)
        self._node_sizes: dict[str, NodeSize] = {}
        """Also of nodes that are gone: jobs have used them."""
        self._nodes.add_listener(self._on_node)
        self._facts: Informer[ConfigMap] = Informer(
            client,
            CONFIG_MAPS,
            scope,
            labels=f"{FACTS_LABEL}=true",
            indexes={"job": lambda facts: [_owner_uid(facts)]},
        )
        self.plans: Informer[ScalePlan] = Informer(
            client,
            SCALE_PLANS,
            scope,
            indexes={"job": lambda plan: [f"{plan.metadata.namespace}/{plan.job_name}"]},
        )
        self.groups: Informer[PodGroup] = Informer(client, POD_GROUPS, scope, indexes=by_job)
        self.queues: Informer[Queue] = Informer(client, QUEUES)
        self._namespaces: Informer[Namespace] = Informer(client, NAMESPACES)
        self._namespaces.add_listener(self._on_namespace)
        for kind, informer in self._kinds:
            informer.add_listener(partial(self._on_job, kind))
        self.pods.add_listener(self._on_pod)
        self._facts.add_listener(self._on_facts)

    def add_listeners(
        self, on_job: JobListener, on_pod: Callable[[str, Pod], None], on_usage: UsageListener
    ) -> None:
        """Call these after the collector has taken a change, pods with the uid of their job."""
        self._job_listeners.append(on_job)
        self._usage_listeners.append(on_usage)

        def listen(old: Any, new: Any) -> None:
            on_pod(_controller_uid(new or old), new or old)

        self.pods.add_listener(listen)

    async def run(self, watched: Iterable[str] = ()) -> None:
        """Watch until cancelled.

        Args:
            watched: uids of jobs that an earlier process has watched.
        """
        self._known = frozenset(watched)
        async with asyncio.TaskGroup() as tasks:
            # Order: a namespace that is excluded must be known before its jobs.
            tasks.create_task(self._namespaces.run())
            await self._namespaces.wait_for_sync()
            own = (self.pods, self._nodes, self._facts, self.plans, self.groups, self.queues)
            for informer in (*(informer for _, informer in self._kinds), *own):
                tasks.create_task(informer.run())
            tasks.create_task(poll_usage(self._client, self._on_usage, self._usage_s))

    async def synced(self) -> None:
        """Wait for the first lists of pods, nodes, namespaces, facts and existing job kinds."""
        await self._namespaces.wait_for_sync()
        await self.pods.wait_for_sync()
        await self._nodes.wait_for_sync()
        for informer in (self._facts, *(informer for _, informer in self._kinds)):
            # A cluster may lack the CRD of a kind: its informer reports a problem and retries.
            while not (informer.has_synced or informer.problem):  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    @property
    def has_all_kinds(self) -> bool:
        """Whether the jobs of every kind are listed: then a missing job was deleted."""
        return all(informer.has_synced for _, informer in self._kinds)

    def running(self) -> list[WatchedJob]:
        return [
            job
            for _, job in sorted(self.jobs.items())
            if job.observations.job and job.observations.job.outcome is Outcome.RUNNING
        ]

    def changed_runs(self) -> Iterator[Run]:
        """Yield the runs that have changed since the last call, each as it is when it is taken."""
        changed, self._changed = self._changed, set()
        for uid in sorted(changed):
            job = self.jobs.get(uid)
            if job is not None and (run := job.observations.run()) is not None:
                yield run

    def forget_ended(self) -> None:
        """Forget what is known of jobs that have ended long ago."""
        before = time.monotonic() - RETAIN_ENDED_S
        for uid, job in list(self.jobs.items()):
            if job.ended_at is not None and job.ended_at < before:
                job.observations.segments.clear()
                job.observations.facts.clear()
                job.memory.clear()
                if job.stored is None:
                    del self.jobs[uid]

    def nodes(self) -> tuple[NodeCapacity, ...]:
        used = requests_by_node(self.pods.items(), GPU)
        nodes = sorted(self._nodes.items(), key=lambda node: node.metadata.name)
        return tuple(digest_node(node, *used.get(node.metadata.name, (0,))) for node in nodes)

    def pod_group_of(self, uid: str) -> PodGroup | None:
        return next(iter(self.groups.by_index("job", uid)), None)

    def receive_facts(self, uid: str, text: str | bytes) -> str:
        """Take a document of facts of one job. Returns why it was not read, or an empty text."""
        job = self.jobs.get(uid)
        if job is None:
            return "no watched job has this uid"
        now_ms = round(self._clock() * 1000)
        digested = digest_facts(text, now_ms)
        self.dropped_facts += digested.dropped
        if digested.problem:
            self.dropped_facts += 1
            return f"the document {digested.problem}"
        job.tunes_batch = digested.facts.tunes_batch
        is_new = job.observations.add_facts(digested)
        if job.observations.mark_future(now_ms) or is_new:
            self._changed.add(uid)
        return ""

    def receive_steps(self, uid: str, steps: Iterable[ReportedStep]) -> None:
        if (job := self.jobs.get(uid)) is not None:
            is_new = job.observations.add_steps(steps)
            if job.observations.mark_future(round(self._clock() * 1000)) or is_new:
                self._changed.add(uid)

    def _on_namespace(self, old: Namespace | None, new: Namespace | None) -> None:
        name = (new or old).metadata.name  # type: ignore[union-attr]
        if new is not None and new.metadata.labels.get(BRAIN_ANNOTATION) == "off":
            self._excluded.add(name)
            for uid in [uid for uid, job in self.jobs.items() if job.meta.namespace == name]:
                del self.jobs[uid]
        elif name in self._excluded:
            self._excluded.remove(name)
            for kind, informer in self._kinds if new is not None else ():
                for job in informer.items():
                    if job.metadata.namespace == name:
                        self._on_job(kind, None, job)

    def _on_job(self, kind: JobKind, old: Any, new: Any) -> None:
        if new is not None:
            self._observe_job(kind, new)
        elif old is not None:
            self._on_deleted_job(old)
        for listener in self._job_listeners:
            if (new or old).metadata.namespace not in self._excluded:
                listener(kind, old, new)

    def _observe_job(self, kind: JobKind, stored: Any) -> None:
        meta = stored.metadata
        if meta.namespace in self._excluded:
            return
        digested = digest_job(kind, stored, self._settings)
        is_running = digested.job.outcome is Outcome.RUNNING
        job = self.jobs.get(meta.uid)
        is_new = job is None
        if job is None:
            progress = StepProgress(self._segment_ms)
            observations = JobObservations(nodes=self._node_sizes, progress=progress)
            job = self.jobs[meta.uid] = WatchedJob(kind, meta, observations)
            age_s = self._clock() - digested.job.submitted_ms / 1000
            is_known = age_s <= WATCHED_FROM_START_S or meta.uid in self._known
            observations.watched_from_start = is_running and is_known
        job.meta, job.stored, job.problems = meta, stored, digested.problems
        record = replace(digested.job, observed_ms=round(self._clock() * 1000))
        if job.observations.add_job(record):
            self._changed.add(meta.uid)
        if not is_running and job.ended_at is None:
            job.ended_at = time.monotonic()
        if (reported := reported_step(kind.status(stored).trainer_status)) is not None:
            self.receive_steps(meta.uid, [reported])
        # The watches have no common order: pods and facts may arrive before their job.
        for pod in self.pods.by_index("job", meta.uid) if is_new else ():
            self._on_pod(None, pod)
        for facts in self._facts.by_index("job", meta.uid) if is_new else ():
            self._on_facts(None, facts)

    def _on_deleted_job(self, stored: Any) -> None:
        job = self.jobs.get(stored.metadata.uid)
        if job is None or job.observations.job is None:
            return
        job.stored = None
        job.ended_at = job.ended_at or time.monotonic()
        record = job.observations.job
        if record.outcome is Outcome.RUNNING:
            ended = round(self._clock() * 1000)
            job.observations.add_job(replace(record, outcome=Outcome.DELETED, finished_ms=ended))
            self._changed.add(stored.metadata.uid)

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        pod: Pod = new or old  # type: ignore[assignment]
        uid = _controller_uid(pod)
        if (job := self.jobs.get(uid)) is not None:
            runs, at_ms = digest_pod(pod), round(self._clock() * 1000)
            if new is None:
                runs = [end_of_deleted(run, at_ms) for run in runs]
            if any([job.observations.add_run(run) for run in runs]):
                self._changed.add(uid)

    def _on_node(self, _: Node | None, new: Node | None) -> None:
        if new is not None:
            # What all pods of the node can use together.
            written = new.status.capacity or new.status.allocatable
            self._node_sizes[new.metadata.name] = NodeSize(*_amounts(written, CPU, MEMORY))

    def _on_facts(self, _: ConfigMap | None, facts: ConfigMap | None) -> None:
        if facts is None or facts.metadata.namespace in self._excluded:
            return
        text, uid = facts.data.get(FACTS_KEY, ""), _owner_uid(facts)
        if text and uid and (problem := self.receive_facts(uid, text)):
            where = f"{facts.metadata.namespace}/{facts.metadata.name}"
            log.info("facts were not read: %s", problem, extra={"configmap": where})

    async def _on_usage(self, samples: Mapping[tuple[str, str], PodSample]) -> None:
        turns, by_job = Turns(), dict[str, list[tuple[Pod, PodSample]]]()
        for name, sample in samples.items():
            if (pod := self.pods.get(*name)) is not None:
                by_job.setdefault(_controller_uid(pod), []).append((pod, sample))
            await turns.give_way()
        for uid, measured in by_job.items():
            job = self.jobs.get(uid)
            if job is not None and job.ended_at is None:
                for listener in self._usage_listeners:
                    listener(uid, [sample for _, sample in measured])
                for pod, sample in measured:
                    self._add_sample(uid, job, pod, sample)
            await turns.give_way()

    def _add_sample(self, uid: str, job: WatchedJob, pod: Pod, sample: PodSample) -> None:
        runs = [run for run in digest_pod(pod) if run.ended_ms is None]
        if not runs or not sample.memory_bytes:
            return
        run, now_ms, used = runs[-1], round(self._clock() * 1000), sample.memory_bytes
        job.observations.polled.setdefault(run.key, SampleBuffer()).add(sample)
        memory = job.memory.setdefault((run.role, run.rank), [])
        memory.append(MemorySample(role=run.role, rank=run.rank, at_ms=now_ms, memory_bytes=used))
        del memory[:-MEMORY_SAMPLES]
        if run.role == PS:
            job.servers.add(run.rank, pod.spec.node_name, pod_limits(pod), sample, now_ms)
        self._changed.add(uid)


def _owner_uid(item: Object) -> str:
    owner = next(iter(item.metadata.owner_references), None)
    return owner.uid if owner else ""


def _controller_uid(item: Object) -> str:
    owner = item.metadata.controller
    return owner.uid if owner else ""
