"""Training jobs as Kubeflow's operator names them: the common parts, and PyTorchJob.

The common parts (run policy, replica specs, job status) serve every kind of the group
``kubeflow.org``; a further kind adds a struct of its own and nothing here. Pod templates are kept
as the user wrote them: pods are made from the text, so that no field gets lost that we do not know.
"""

from datetime import datetime
from typing import Annotated

from gangline.api.describe import FreeForm, ResourceList, about
from gangline.api.meta import Condition, LabelSelector, Object, Wire
from gangline.api.pod import PodTemplateSpec

GROUP = "kubeflow.org"
VERSION = "v1"
MANAGED_BY_US = "kubeflow.org/training-operator"
MANAGED_BY_MULTI_KUEUE = "kueue.x-k8s.io/multikueue"
RESTART_ANNOTATION = "gangline.dev/restart"
"""On a job: ``gang`` restarts all replicas together when one fails."""
RESIZE_ANNOTATION = "gangline.dev/resize"
"""On a job: ``restart`` restarts all replicas together when their number changes."""
SHARED_MEMORY_ANNOTATION = "gangline.dev/shared-memory"
"""On a job: memory at /dev/shm for the container that trains; ``true``, ``false`` or how much."""


class SchedulingPolicy(Wire):
    """What the gang scheduler is told about a job."""

    min_available: Annotated[
        int | None,
        about("Pods that must fit at once; all of them when not given.", minimum=0),
    ] = None
    queue: Annotated[str, about("Queue that pays for the job; default when not given.")] = ""
    min_resources: Annotated[
        ResourceList | None,
        about("Resources that must be free; computed from the pods when not given."),
    ] = None
    priority_class: Annotated[str, about("Priority class of the gang.")] = ""
    schedule_timeout_seconds: Annotated[
        int | None, about("Seconds the gang may take to be placed.", minimum=0)
    ] = None


class RunPolicy(Wire):
    """How a job runs and what happens when it ends."""

    clean_pod_policy: Annotated[
        str | None,
        about(
            "Which pods go when the job ends: None (when not given) keeps all, Running deletes "
            "those still running, All deletes all.",
            values=("All", "Running", "None"),
        ),
    ] = None
    ttl_seconds_after_finished: Annotated[
        int | None,
        about("Seconds after its end until the job is deleted; never if not given.", minimum=0),
    ] = None
    active_deadline_seconds: Annotated[
        int | None,
        about("Seconds from its start until an unfinished job is failed.", minimum=1),
    ] = None
    backoff_limit: Annotated[
        int | None,
        about("Restarts until the job is failed; no limit when not given.", minimum=0),
    ] = None
    scheduling_policy: Annotated[
        SchedulingPolicy | None, about("What the gang scheduler is told.")
    ] = None
    suspend: Annotated[
        bool | None,
        about("True deletes the pods and holds the job until it is false again.", default=False),
    ] = None
    managed_by: Annotated[
        str | None,
        about(
            "Controller that runs the job; cannot be changed.",
            values=(MANAGED_BY_US, MANAGED_BY_MULTI_KUEUE),
        ),
    ] = None


class ReplicaSpec(Wire):
    """The pods of one role."""

    replicas: Annotated[int | None, about("How many pods; 1 when not given.", minimum=0)] = None
    template: Annotated[FreeForm, about("What the pods look like.", shape=PodTemplateSpec)] = {}
    restart_policy: Annotated[
        str | None,
        about(
            "When a failed pod is made anew. ExitCode: only after codes that promise something, "
            "128 and above. Wins over the template's.",
            values=("Always", "OnFailure", "Never", "ExitCode"),
        ),
    ] = None


class ReplicaStatus(Wire):
    """Pods of one role, counted."""

    active: Annotated[int, about("Pods on their way or running.")] = 0
    succeeded: Annotated[int, about("Pods that ended well.")] = 0
    failed: Annotated[int, about("Pods that failed.")] = 0
    label_selector: Annotated[LabelSelector | None, about("Old form of selector.")] = None
    selector: Annotated[str, about("Label selector of the pods, for the scale subresource.")] = ""
    completed_indexes: Annotated[
        str, about("Replicas that ended well and are not made anew, such as 0,2-4.")
    ] = ""


class RestartRecord(Wire):
    """The restarts of a job: what survives its pods and its operator, so that limits count."""

    total: Annotated[int, about("Restarts so far, in place and by new pods.", minimum=0)] = 0
    pods: Annotated[
        dict[str, int], about("Of these, restarts by pods that still exist, by their uid.")
    ] = {}
    generation: Annotated[
        int, about("How often all replicas were restarted together.", minimum=0)
    ] = 0
    bursts: Annotated[
        int, about("Groups of failures in short succession; they slow down replacement.", minimum=0)
    ] = 0
    burst_start: Annotated[datetime | None, about("When the newest of these groups began.")] = None


class JobStatus(Wire):
    """Where a job is in its life."""

    conditions: Annotated[
        list[Condition],
        about(
            "Created, Running, Restarting, Suspended, Succeeded, Failed: what holds of the job. "
            "The last one was the last to change."
        ),
    ] = []
    replica_statuses: Annotated[dict[str, ReplicaStatus], about("Pods counted by role.")] = {}
    start_time: Annotated[datetime | None, about("When the job started (or resumed).")] = None
    completion_time: Annotated[datetime | None, about("When the job ended.")] = None
    last_reconcile_time: Annotated[datetime | None, about("When it was last looked at.")] = None
    restarts: Annotated[RestartRecord, about("How often it was restarted.")] = RestartRecord()


class RendezvousSetting(Wire):
    """One setting of the rendezvous."""

    key: Annotated[str, about("Name of the setting.")] = ""
    value: Annotated[str, about("Value of the setting.")] = ""


class ElasticPolicy(Wire):
    """How many workers a job can live with, and how they find each other."""

    min_replicas: Annotated[
        int | None,
        about("Fewest workers; maxReplicas, else the number of workers, if not given.", minimum=1),
    ] = None
    max_replicas: Annotated[
        int | None,
        about("Most workers; minReplicas, else the number of workers, if not given.", minimum=1),
    ] = None
    rdzv_backend: Annotated[
        str | None,
        about("How workers meet; c10d if not given.", values=("c10d", "etcd", "etcd-v2")),
    ] = None
    rdzv_port: Annotated[
        int | None,
        about("Port of the rendezvous; the worker's if not given.", minimum=1, maximum=65535),
    ] = None
    rdzv_host: Annotated[str | None, about("Host of the rendezvous; else worker 0.")] = None
    rdzv_id: Annotated[str | None, about("Id of the rendezvous.")] = None
    rdzv_conf: Annotated[list[RendezvousSetting], about("Further settings.")] = []
    standalone: Annotated[bool | None, about("A rendezvous of this pod alone.")] = None
    n_proc_per_node: Annotated[int | None, about("Old form of nprocPerNode.", minimum=1)] = None
    max_restarts: Annotated[
        int | None, about("Restarts of the workers within their pods.", minimum=0)
    ] = None
    metrics: Annotated[list[FreeForm], about("Metrics to scale by (autoscaling/v2).")] = []


class PyTorchJobSpec(Wire):
    """What a PyTorchJob runs."""

    run_policy: Annotated[RunPolicy, about("How it runs and ends.")] = RunPolicy()
    pytorch_replica_specs: Annotated[
        dict[str, ReplicaSpec],
        about("Pods by role: Master (at most one pod) and Worker.", required=True),
    ] = {}
    nproc_per_node: Annotated[
        str | None,
        about("Processes in each pod: a number, auto (when not given), cpu or gpu."),
    ] = None
    elastic_policy: Annotated[
        ElasticPolicy | None, about("Given: the number of workers may change while it runs.")
    ] = None


class PyTorchJob(Object):
    """A distributed PyTorch training job."""

    spec: Annotated[PyTorchJobSpec, about("What it runs.", required=True)] = PyTorchJobSpec()
    status: Annotated[JobStatus, about("Where it is in its life; written by the operator.")] = (
        JobStatus()
    )
