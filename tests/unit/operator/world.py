"""An in-memory cluster with one job: API server, kubelets and users.

Every event is a method, so that a test can play any history in any order, kill the operator between
two writes, or let it plan from an outdated observation.
"""

import dataclasses
import itertools
import random
from datetime import datetime, timedelta
from typing import Any, TypeVar

import jsonpatch
import msgspec
from msgspec.structs import replace

from gangline.api.failure import PREEMPTED_CONDITION, PREEMPTION_BY_SCHEDULER
from gangline.api.jobs.kubeflow import JobStatus
from gangline.api.meta.objects import Condition, ObjectMeta
from gangline.api.volcano.scheduling import PodGroup, PodGroupSpec
from gangline.operator.engine.plan import plan_reconcile
from gangline.operator.engine.valid_spec import job_in_force, record_spec
from gangline.operator.model import conditions
from gangline.operator.model.framework import DecodesStatus, ParsedJob
from gangline.operator.model.job import RawJob
from gangline.operator.model.plan import (
    EngineSettings,
    ObservedJob,
    OwnedObject,
    PlannedCreation,
    PlannedDeletion,
    PlannedPatch,
    ReconcilePlan,
    TargetKind,
)
from gangline.operator.model.replicas import (
    ObservedContainerState,
    ObservedContainerStatus,
    ObservedPod,
    ObservedPodSpec,
    ObservedPodStatus,
    ObservedService,
    ObservedServiceSpec,
    ObservedTermination,
)
from gangline.operator.policies import gang_restart
from gangline.operator.policies.backoff import count_in_place_restarts
from unit.operator.builders import NOW, has_writes, manifest, owner, stored
from unit.operator.kinds import KINDS

SETTINGS = EngineSettings(gang_scheduling=True)

_T = TypeVar("_T", PodGroup, OwnedObject)


def _patched(item: _T, patch: PlannedPatch, type_: type[_T]) -> _T:
    """Apply a JSON patch as an API server does, annotations and all."""
    written = msgspec.to_builtins(item)
    written.setdefault("metadata", {}).setdefault("annotations", {})
    written.setdefault("spec", {})
    return msgspec.convert(jsonpatch.apply_patch(written, patch.operations), type_)


class World:
    """One job and its objects."""

    def __init__(self, written: dict[str, Any] | None = None, seed: int = 0) -> None:
        self.written = written or manifest()
        named = (self.written["apiVersion"], self.written["kind"])
        self.kind = next(
            kind for kind in KINDS.values() if (kind.api_version, kind.framework.kind.kind) == named
        )
        self.status = self._no_status()
        self.pods: dict[str, ObservedPod] = {}
        self.services: dict[str, ObservedService] = {}
        self.group: PodGroup | None = None
        self.now = NOW
        self.exists = True
        self.extras: dict[tuple[TargetKind, str], OwnedObject] = {}
        self.failures = 0
        self.failed_generations: set[int] = set()
        self.in_place_restarts = 0
        self.version = 0
        self._uids = itertools.count(1)
        self._random = random.Random(seed)
        self._deleting: datetime | None = None
        self.spec_generation = 1
        self._reading: ParsedJob | None = None

    def _no_status(self) -> JobStatus:
        framework = self.kind.framework
        return (
            framework.read_status(RawJob()) if isinstance(framework, DecodesStatus) else JobStatus()
        )

    # The operator

    def observe(self) -> ObservedJob:
        """The current observation, in random order."""
        written = stored(self.written)
        written = replace(
            written, metadata=replace(written.metadata, generation=self.spec_generation)
        )
        read = self.kind.framework.read
        reading = self._reading = self._reading or read(written)
        job, is_earlier = job_in_force(written, reading, self.status, self.pods.values(), read)
        record = self.status.last_valid_spec
        if not reading.spec_errors:
            record = record_spec(written, record)
        if self._deleting:
            meta = replace(job.meta, deletion_timestamp=self._deleting)
            job = dataclasses.replace(job, meta=meta)
        pods, services = list(self.pods.values()), list(self.services.values())
        self._random.shuffle(pods)
        self._random.shuffle(services)
        extras = list(self.extras.values())
        return ObservedJob(
            job,
            self.status,
            pods,
            services,
            self.group,
            extras,
            spec_errors=reading.spec_errors,
            has_earlier_spec=is_earlier,
            last_valid_spec=record,
        )

    def decide(self, observed: ObservedJob | None = None) -> ReconcilePlan:
        """Plan from the current observation, or from the given one."""
        return plan_reconcile(observed or self.observe(), self.now, SETTINGS)

    def carry_out(
        self, decision: ReconcilePlan, writes: int | None = None, version: int = -1
    ) -> bool:
        """Execute a plan; killed after ``writes`` writes. Return True if it was completed.

        ``version`` is the job's at observation: a status write that is based on an older one
        conflicts.
        """
        steps = [*decision.deletions, *decision.patches, *decision.creations]
        for step in steps[:writes]:
            match step:
                case PlannedDeletion():
                    self._delete(step)
                case PlannedPatch():
                    self._patch(step)
                case PlannedCreation():
                    self._create(step)
        if writes is not None and writes <= len(steps):
            return False
        if decision.status != self.status:
            if version not in (-1, self.version):
                return False
            self.status = decision.status
            self.version += 1
        return True

    def settle(self, most: int = 6) -> ReconcilePlan:
        """Run the operator until it has nothing to do, and return the last plan."""
        for _ in range(most):
            decision = self.decide()
            if (not has_writes(decision) and decision.status == self.status) or not self.exists:
                return decision
            self.carry_out(decision)
        raise AssertionError(f"still not settled: {self.decide()}")

    def _create(self, creation: PlannedCreation) -> None:
        meta = ObjectMeta(
            name=creation.name,
            namespace="team",
            uid=f"uid-{next(self._uids)}",
            labels=creation.manifest["metadata"]["labels"],
            annotations=creation.manifest["metadata"].get("annotations", {}),
            owner_references=[owner()],
            creation_timestamp=self.now,
        )
        match creation.target:
            case TargetKind.POD:
                status = ObservedPodStatus(phase="Pending")
                spec = msgspec.convert(creation.manifest["spec"], ObservedPodSpec)
                self.pods.setdefault(
                    creation.name, ObservedPod(metadata=meta, spec=spec, status=status)
                )
            case TargetKind.SERVICE:
                place = ObservedServiceSpec("10.96.0.7")
                self.services.setdefault(creation.name, ObservedService(metadata=meta, spec=place))
            case TargetKind.POD_GROUP:
                wish = msgspec.convert(creation.manifest["spec"], PodGroupSpec)
                self.group = self.group or PodGroup(metadata=meta, spec=wish)
            case target:
                extra = OwnedObject(metadata=meta, kind=target)
                self.extras.setdefault((target, creation.name), extra)

    def _patch(self, patch: PlannedPatch) -> None:
        if patch.target is TargetKind.POD_GROUP:
            self.group = self.group and _patched(self.group, patch, PodGroup)
        elif patch.target is TargetKind.JOB:
            if any(
                operation["path"].startswith("/metadata/annotations")
                for operation in patch.operations
            ):
                meta = {"resourceVersion": "", **self.written["metadata"]}
                self.written = jsonpatch.apply_patch(
                    {**self.written, "metadata": meta}, patch.operations
                )
                self._reading = None
        else:
            key = patch.target, patch.name
            extra = self.extras.get(key)
            if extra:
                self.extras[key] = replace(_patched(extra, patch, OwnedObject), kind=patch.target)

    def _delete(self, deletion: PlannedDeletion) -> None:
        match deletion.target:
            case TargetKind.POD:
                pod = self.pods.get(deletion.name)
                if pod and pod.uid == deletion.uid:
                    self._terminate(pod)
            case TargetKind.SERVICE:
                self.services.pop(deletion.name, None)
            case TargetKind.POD_GROUP:
                self.group = None
            case TargetKind.JOB:
                self.exists = False
            case target:
                self.extras.pop((target, deletion.name), None)

    # Kubelets

    def pod(self, number: int) -> ObservedPod | None:
        """Return one of the pods."""
        names = sorted(self.pods)
        return self.pods[names[number % len(names)]] if names else None

    def start(self, pod: ObservedPod) -> None:
        """A pending pod is placed and its container starts."""
        if pod.status.phase == "Pending" and not pod.is_terminating:
            self._set(pod, "Running", node="node-1")

    def succeed(self, pod: ObservedPod) -> None:
        """A running pod succeeds."""
        if pod.status.phase == "Running":
            self._set(pod, "Succeeded", code=0)

    def fail(self, pod: ObservedPod, code: int | None) -> None:
        """A running pod fails; without a code it was evicted."""
        if pod.status.phase == "Running" and not pod.is_terminating:
            self._set(pod, "Failed", code=code)
            self.failures += 1
            self.failed_generations.add(gang_restart.generation_of(pod))

    def refuse(self, pod: ObservedPod) -> None:
        """The node of a pending pod refuses it."""
        if pod.status.phase == "Pending" and not pod.is_terminating:
            self._set(pod, "Failed", node="node-1", reason="OutOfcpu")

    def start_all(self) -> None:
        """All pending pods start."""
        for pod in list(self.pods.values()):
            self.start(pod)

    def restart(self, pod: ObservedPod) -> None:
        """The kubelet restarts a running pod's container in place."""
        if gang_restart.restarts_gang(self.observe().job):
            return  # the kubelet does not restart it
        if pod.status.phase == "Running" and not pod.is_terminating:
            self._set(pod, "Running", restarts=count_in_place_restarts(pod) + 1)
            self.in_place_restarts += 1

    def preempt(self, pod: ObservedPod) -> None:
        """The scheduler evicts a pod for another job."""
        condition = Condition(
            type=PREEMPTED_CONDITION,
            status="True",
            reason=PREEMPTION_BY_SCHEDULER,
            message="Evicted: preempted by team/urgent of higher priority",
        )
        self._terminate(replace(pod, status=replace(pod.status, conditions=(condition,))))

    def vanish(self, pod: ObservedPod) -> None:
        """A pod disappears with its node."""
        del self.pods[pod.name]

    def finish_terminating(self) -> None:
        """Terminating pods disappear."""
        self.pods = {name: pod for name, pod in self.pods.items() if not pod.is_terminating}

    def _terminate(self, pod: ObservedPod) -> None:
        if not pod.is_terminating:
            meta = replace(pod.metadata, deletion_timestamp=self.now + timedelta(seconds=30))
            self.pods[pod.name] = replace(pod, metadata=meta)

    def _set(
        self,
        pod: ObservedPod,
        phase: str,
        *,
        code: int | None = None,
        restarts: int | None = None,
        node: str = "",
        reason: str = "",
    ) -> None:
        ended = ObservedTermination(code) if code is not None else None
        count = count_in_place_restarts(pod) if restarts is None else restarts
        name = self.kind.framework.kind.container
        state = ObservedContainerState(terminated=ended)
        container = ObservedContainerStatus(name, count, state, ready=phase == "Running")
        self.pods[pod.name] = replace(
            pod,
            spec=replace(pod.spec, node_name=node or pod.spec.node_name),
            status=ObservedPodStatus(
                phase=phase,
                reason=reason,
                pod_ip="10.1.0.9",
                container_statuses=(container,),
            ),
        )

    # Users

    def remove_pod(self, pod: ObservedPod) -> None:
        """A user deletes a pod."""
        self._terminate(pod)

    def suspend(self, on: bool) -> None:
        """A user suspends or resumes the job."""
        self._edit("runPolicy", {**self.written["spec"]["runPolicy"], "suspend": on})
        if self.kind.framework.kind.entry.suspend_path == ("spec", "suspend"):
            self._edit("suspend", on)

    def scale(self, workers: int) -> None:
        """A user changes the number of workers."""
        self.written = self.kind.scale(self.written, workers)
        self._spec_changed()

    def delete_job(self) -> None:
        """A user deletes the job in the foreground."""
        self._deleting = self.now
        self.version += 1

    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.now += timedelta(seconds=seconds)

    def _edit(self, field: str, value: Any) -> None:
        self.written = {**self.written, "spec": {**self.written["spec"], field: value}}
        self._spec_changed()

    def _spec_changed(self) -> None:
        self._reading = None
        self.spec_generation += 1
        self.version += 1

    # Queries

    @property
    def finished(self) -> bool:
        """Whether the job has ended according to its stored status."""
        return conditions.is_finished(self.status.conditions)

    @property
    def generation(self) -> int:
        """The stored number of gang restarts."""
        return self.status.restarts.generation

    @property
    def held(self) -> bool:
        """Whether no pod may be created now."""
        suspended = self.written["spec"]["runPolicy"].get("suspend", False)
        return self.finished or suspended or self._deleting is not None

    def calm(self, rounds: int = 60) -> None:
        """Nothing fails any more: pods start and succeed, time passes, the operator works."""
        for _ in range(rounds):
            decision = self.settle()
            if self.finished:
                return
            for pod in list(self.pods.values()):
                self.start(pod)
                self.succeed(self.pods[pod.name])
            self.finish_terminating()
            self.now += max(decision.requeue_after or timedelta(0), timedelta(seconds=1))
        raise AssertionError(f"no end: {self.status} {self.pods}")
