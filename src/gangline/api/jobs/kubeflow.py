"""Training jobs with the names of Kubeflow's training operator: the common parts, and PyTorchJob.

The run policy, replica specs and job status serve every kind of the group ``kubeflow.org``; a
further kind adds only its own struct. Pod templates stay plain data as the user wrote them: pods
are made from that data, so that fields unknown to this version are not lost.
"""

from datetime import datetime
from typing import Annotated

from gangline.api.core.pod import PodTemplateSpec
from gangline.api.job_names import MANAGED_BY_MULTI_KUEUE
from gangline.api.jobs.progress import TrainerStatus
from gangline.api.meta.field_doc import FreeForm, ResourceList, doc
from gangline.api.meta.objects import Condition, LabelSelector, Object, Wire

MANAGED_BY_US = "kubeflow.org/training-operator"
RESTART_ANNOTATION = "gangline.dev/restart"
"""On a job: ``gang`` restarts all replicas together if one fails."""
RESIZE_ANNOTATION = "gangline.dev/resize"
"""On a job: ``restart`` restarts all replicas together if their number changes."""
STALLED_ANNOTATION = "gangline.dev/stalled"
"""On a job: what happens when a restarted rank waits for one that has ended: ``restart`` restarts
all replicas, ``fail`` ends the job. Without it the condition ``Stalled`` reports it.
"""
SHARED_MEMORY_ANNOTATION = "gangline.dev/shared-memory"
"""On a job: memory at /dev/shm for the main container: ``true``, ``false`` or a quantity."""


class SchedulingPolicy(Wire):
    """Settings for the gang scheduler."""

    min_available: Annotated[
        int | None,
        doc("Pods that must fit together; all of them when not given.", minimum=0),
    ] = None
    queue: Annotated[str, doc("Queue of the job; default when not given.")] = ""
    min_resources: Annotated[
        ResourceList | None,
        doc("Resources that must be free; computed from the pods when not given."),
    ] = None
    priority_class: Annotated[str, doc("Priority class of the gang.")] = ""
    schedule_timeout_seconds: Annotated[
        int | None, doc("Maximum seconds until the gang is placed.", minimum=0)
    ] = None


class CommonRunPolicy(Wire):
    """The limits of a job's life time."""

    ttl_seconds_after_finished: Annotated[
        int | None,
        doc("Seconds after its end until the job is deleted; never if not given.", minimum=0),
    ] = None
    active_deadline_seconds: Annotated[
        int | None,
        doc("Seconds from its start until an unfinished job fails.", minimum=1),
    ] = None
    backoff_limit: Annotated[
        int | None,
        doc("Restarts until the job fails; no limit when not given.", minimum=0),
    ] = None
    suspend: Annotated[
        bool | None,
        doc("True deletes the pods and suspends the job until it is false again.", default=False),
    ] = None
    managed_by: Annotated[
        str | None,
        doc(
            "Controller that runs the job; cannot be changed.",
            values=(MANAGED_BY_US, MANAGED_BY_MULTI_KUEUE),
        ),
    ] = None


class RunPolicy(CommonRunPolicy):
    """How a job runs and what happens when it ends."""

    clean_pod_policy: Annotated[
        str | None,
        doc(
            "Pods that are deleted when the job ends: None (when not given) of them, Running those "
            "that still run, All of them.",
            values=("All", "Running", "None"),
        ),
    ] = None
    scheduling_policy: Annotated[
        SchedulingPolicy | None, doc("Settings for the gang scheduler.")
    ] = None


class ReplicaSpec(Wire):
    """The pods of one role."""

    replicas: Annotated[int | None, doc("How many pods; 1 when not given.", minimum=0)] = None
    template: Annotated[FreeForm, doc("Template of the pods.", shape=PodTemplateSpec)] = {}
    restart_policy: Annotated[
        str | None,
        doc(
            "When a failed pod is recreated. ExitCode: only after exit codes of 128 and above. "
            "Takes precedence over the template's.",
            values=("Always", "OnFailure", "Never", "ExitCode"),
        ),
    ] = None


class ReplicaStatus(Wire):
    """Numbers of pods of one role."""

    active: Annotated[int, doc("Pods that are pending or running.")] = 0
    succeeded: Annotated[int, doc("Pods that succeeded.")] = 0
    failed: Annotated[int, doc("Pods that failed.")] = 0
    label_selector: Annotated[LabelSelector | None, doc("Old form of selector.")] = None
    selector: Annotated[str, doc("Label selector of the pods, for the scale subresource.")] = ""
    completed_indexes: Annotated[
        str, doc("Replicas that succeeded and are not recreated, such as 0,2-4.")
    ] = ""


class RankBackoff(Wire):
    """The failures of one rank, which delay its next pod."""

    failures: Annotated[
        int, doc("Failed pods in succession; they delay replacement.", minimum=0)
    ] = 0
    refusals: Annotated[
        int, doc("Pods in succession that their nodes refused to start.", minimum=0)
    ] = 0
    since: Annotated[datetime | None, doc("Time of the latest of them.")] = None
    refused_pod: Annotated[str, doc("Uid of the latest refused pod.")] = ""


class RestartRecord(Wire):
    """The restarts of a job. The record outlives pods and operator, so limits keep counting."""

    total: Annotated[int, doc("Restarts so far, of containers and by new pods.", minimum=0)] = 0
    pods: Annotated[
        dict[str, int], doc("Of these, restarts by pods that still exist, by their uid.")
    ] = {}
    roles: Annotated[
        dict[str, int], doc("Of these, restarts by role, for roles with a limit.")
    ] = {}
    generation: Annotated[
        int, doc("How often all replicas were restarted together.", minimum=0)
    ] = 0
    bursts: Annotated[
        int, doc("Restarts of all replicas in succession; they delay the next.", minimum=0)
    ] = 0
    burst_start: Annotated[datetime | None, doc("Time of the latest of them.")] = None
    ranks: Annotated[
        dict[str, RankBackoff],
        doc("Ranks that failed or were refused lately, such as worker-3."),
    ] = {}


class ValidSpec(Wire):
    """A specification that was valid. It stays in force while the present one is invalid."""

    generation: Annotated[int, doc("Generation of the job that had it.")] = 0
    spec: Annotated[
        str, doc("The specification as JSON, compressed by zlib, in base64; empty if too large.")
    ] = ""


class CommonStatus(Wire):
    """The observed state of a job, as the operator keeps it."""

    conditions: Annotated[
        list[Condition],
        doc(
            "Created, Running, Restarting, Suspended, Succeeded, Failed. The last entry changed "
            "last."
        ),
    ] = []
    replica_statuses: Annotated[dict[str, ReplicaStatus], doc("Pods counted by role.")] = {}
    start_time: Annotated[datetime | None, doc("When the job started (or resumed).")] = None
    completion_time: Annotated[datetime | None, doc("When the job ended.")] = None
    last_reconcile_time: Annotated[datetime | None, doc("Time of the last reconciliation.")] = None
    restarts: Annotated[RestartRecord, doc("Restarts of the job.")] = RestartRecord()
    last_valid_spec: Annotated[
        ValidSpec | None, doc("By which the job runs while its specification is invalid.")
    ] = None


class JobStatus(CommonStatus):
    """The observed state of a job, and what its training reports."""

    trainer_status: Annotated[
        TrainerStatus | None, doc("Progress and metrics that its pods have reported last.")
    ] = None


class RendezvousSetting(Wire):
    """One setting of the rendezvous."""

    key: Annotated[str, doc("Name of the setting.")] = ""
    value: Annotated[str, doc("Value of the setting.")] = ""


class ElasticPolicy(Wire):
    """How many workers a job may have, and how they meet."""

    min_replicas: Annotated[
        int | None,
        doc("Fewest workers; maxReplicas, else the number of workers, if not given.", minimum=1),
    ] = None
    max_replicas: Annotated[
        int | None,
        doc("Most workers; minReplicas, else the number of workers, if not given.", minimum=1),
    ] = None
    rdzv_backend: Annotated[
        str | None,
        doc("Rendezvous backend; c10d if not given.", values=("c10d", "etcd", "etcd-v2")),
    ] = None
    rdzv_port: Annotated[
        int | None,
        doc("Port of the rendezvous; the worker's if not given.", minimum=1, maximum=65535),
    ] = None
    rdzv_host: Annotated[str | None, doc("Host of the rendezvous; else worker 0.")] = None
    rdzv_id: Annotated[str | None, doc("Id of the rendezvous.")] = None
    rdzv_conf: Annotated[list[RendezvousSetting], doc("Further settings.")] = []
    standalone: Annotated[bool | None, doc("Rendezvous within one pod.")] = None
    n_proc_per_node: Annotated[int | None, doc("Old form of nprocPerNode.", minimum=1)] = None
    max_restarts: Annotated[
        int | None, doc("Restarts of the workers within their pods.", minimum=0)
    ] = None
    metrics: Annotated[list[FreeForm], doc("Metrics to scale by (autoscaling/v2).")] = []


class PyTorchJobSpec(Wire):
    """The desired state of a PyTorchJob."""

    run_policy: Annotated[RunPolicy, doc("Run policy of the job.")] = RunPolicy()
    pytorch_replica_specs: Annotated[
        dict[str, ReplicaSpec],
        doc("Pods by role: Master (at most one pod) and Worker.", required=True),
    ] = {}
    nproc_per_node: Annotated[
        str | None,
        doc("Processes in each pod: a number, auto (when not given), cpu or gpu."),
    ] = None
    elastic_policy: Annotated[
        ElasticPolicy | None, doc("If given, the number of workers may change while it runs.")
    ] = None


class PyTorchJob(Object):
    """A distributed PyTorch training job."""

    spec: Annotated[PyTorchJobSpec, doc("Desired state.", required=True)] = PyTorchJobSpec()
    status: Annotated[JobStatus, doc("Observed state; written by the operator.")] = JobStatus()
