"""Builders for the operator's tests: jobs, pods and conditions."""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from gangline.api.jobs.kubeflow import JobStatus, RestartRecord
from gangline.api.meta.objects import ObjectMeta, OwnerReference
from gangline.operator.engine.plan import plan_reconcile
from gangline.operator.frameworks.pytorch import PyTorchFramework
from gangline.operator.model.job import NormalizedJob, RawJob
from gangline.operator.model.labels import replica_labels, replica_name
from gangline.operator.model.plan import EngineSettings, ObservedJob, ReconcilePlan, TargetKind
from gangline.operator.model.replicas import (
    ObservedContainerState,
    ObservedContainerStatus,
    ObservedPod,
    ObservedPodSpec,
    ObservedPodStatus,
    ObservedService,
    ObservedTermination,
    ObservedWaiting,
)

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
SETTINGS = EngineSettings(gang_scheduling=False)
CONTROLLER = "pytorchjob-controller"
UID = "job-uid"


def at(seconds: float) -> datetime:
    """A time after ``NOW``."""
    return NOW + timedelta(seconds=seconds)


def has_writes(plan: ReconcilePlan) -> bool:
    """Whether a plan changes objects other than the job's status."""
    return bool(plan.creations or plan.deletions or plan.patches)


def template(**spec: Any) -> dict[str, Any]:
    """A pod template with one main container."""
    return {"spec": {"containers": [{"name": "pytorch", "image": "train:1"}], **spec}}


def manifest(
    master: int | None = 1,
    workers: int | None = 2,
    *,
    restart: str | None = None,
    name: str = "train",
    **run_policy: Any,
) -> dict[str, Any]:
    """A PyTorchJob manifest; None omits the role."""
    roles = {"Master": master, "Worker": workers}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name, "namespace": "team", "uid": UID},
        "spec": {
            "runPolicy": run_policy,
            "pytorchReplicaSpecs": {
                role: {
                    "replicas": count,
                    "template": template(),
                    **({"restartPolicy": restart} if restart else {}),
                }
                for role, count in roles.items()
                if count is not None
            },
        },
    }


def stored(written: dict[str, Any]) -> RawJob:
    """The job as in the operator's cache."""
    return msgspec.json.decode(msgspec.json.encode(written), type=RawJob)


def read(written: dict[str, Any], **options: Any) -> NormalizedJob:
    """The job in the common form, even if it is invalid."""
    return PyTorchFramework(**options).read(stored(written)).job


def a_job(*roles: int | None, **options: Any) -> NormalizedJob:
    """``a_job(1, 2, backoffLimit=3)``: a master, two workers, and a run policy."""
    return read(manifest(*roles, **options))


def owner(uid: str = UID, name: str = "train") -> OwnerReference:
    return OwnerReference(
        api_version="kubeflow.org/v1", kind="PyTorchJob", name=name, uid=uid, controller=True
    )


def a_pod(
    replica: str = "worker-0",
    phase: str = "Running",
    *,
    code: int | None = None,
    restarts: int = 0,
    waiting: str = "",
    reason: str = "",
    uid: str = "",
    node: str = "node-1",
    deleted: datetime | None = None,
    job: str = "train",
    job_uid: str = UID,
) -> ObservedPod:
    """``a_pod("worker-1", "Failed", code=3)``."""
    role, _, index = replica.rpartition("-")
    name = replica_name(job, role, int(index))
    state = ObservedContainerState(
        waiting=ObservedWaiting(waiting) if waiting else None,
        terminated=ObservedTermination(code) if code is not None else None,
    )
    return ObservedPod(
        metadata=ObjectMeta(
            name=name,
            namespace="team",
            uid=uid or f"uid-{name}",
            labels=replica_labels(job, CONTROLLER, role, int(index)),
            owner_references=[owner(job_uid, job)],
            creation_timestamp=NOW,
            deletion_timestamp=deleted,
        ),
        spec=ObservedPodSpec(node),
        status=ObservedPodStatus(
            phase=phase,
            reason=reason,
            container_statuses=(ObservedContainerStatus("pytorch", restarts, state),),
        ),
    )


def a_service(replica: str, uid: str = "") -> ObservedService:
    role, _, index = replica.rpartition("-")
    name = f"train-{replica}"
    return ObservedService(
        metadata=ObjectMeta(
            name=name,
            namespace="team",
            uid=uid or f"uid-service-{name}",
            labels=replica_labels("train", CONTROLLER, role, int(index)),
            owner_references=[owner()],
        )
    )


@dataclass(frozen=True)
class Case:
    """The input of one pass over a job: the observation and the time."""

    job: NormalizedJob
    pods: tuple[ObservedPod, ...] = ()
    status: JobStatus = field(default_factory=JobStatus)
    now: datetime = NOW
    settings: EngineSettings = SETTINGS
    extra: dict[str, Any] = field(default_factory=dict)

    def decide(self) -> ReconcilePlan:
        """The engine's plan."""
        services = self.extra.get("services")
        if services is None:
            services = [a_service(pod.name.removeprefix("train-")) for pod in self.pods]
        rest = {key: value for key, value in self.extra.items() if key != "services"}
        observed = ObservedJob(self.job, self.status, self.pods, services, **rest)
        return plan_reconcile(observed, self.now, self.settings)

    def later(self, seconds: float, *pods: ObservedPod) -> "Case":
        """The next pass: with the status of this plan, and with other pods."""
        return replace(self, status=self.decide().status, now=at(seconds), pods=pods)


def look(job: NormalizedJob, *pods: ObservedPod, now: datetime = NOW, **extra: Any) -> Case:
    """``look(a_job(), a_pod("worker-0", "Failed")).decide()``."""
    given = {key: extra.pop(key) for key in ("status", "settings") if key in extra}
    return Case(job, pods, now=now, extra=extra, **given)


def conditions(status: JobStatus) -> list[str]:
    """The conditions in their order; False ones in parentheses."""
    return [c.type if c.status == "True" else f"({c.type})" for c in status.conditions]


def message(status: JobStatus, type_: str) -> str:
    return next(c.message for c in status.conditions if c.type == type_)


def created(decision: ReconcilePlan, target: TargetKind = TargetKind.POD) -> list[str]:
    """The names of created objects, without the job's."""
    return list(manifests_of(decision, target))


def manifests_of(
    decision: ReconcilePlan, target: TargetKind = TargetKind.POD
) -> dict[str, dict[str, Any]]:
    """The created objects by name, without the job's."""
    return {
        c.name.removeprefix("train-"): c.manifest for c in decision.creations if c.target is target
    }


def deleted(decision: ReconcilePlan, target: TargetKind = TargetKind.POD) -> list[str]:
    """The names of deleted objects, without the job's; forced ones with an exclamation mark."""
    return [
        d.name.removeprefix("train-") + ("!" if d.force else "")
        for d in decision.deletions
        if d.target is target
    ]


def restarts(total: int, **pods: int) -> JobStatus:
    """A status that counts restarts."""
    return JobStatus(start_time=NOW, restarts=RestartRecord(total=total, pods=pods))
