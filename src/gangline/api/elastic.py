"""ElasticJob and ScalePlan: elastic training, as DLRover names it (``elastic.iml.github.io``).

Upstream's fields, those of its older releases among them. Whatever has a default may be left out.
Ours are ``runPolicy`` (deadlines, clean-up, queue, as the other kinds have it) and in the status
what the operator remembers of nodes: a node is a pod of a certain number; a replica that is made
anew keeps its rank and gets the next number.
"""

from datetime import datetime
from typing import Annotated

from gangline.api.describe import FreeForm, ResourceList, about
from gangline.api.kubeflow import JobStatus, RunPolicy
from gangline.api.meta import Object, Wire
from gangline.api.pod import PodTemplateSpec

GROUP = "elastic.iml.github.io"
VERSION = "v1alpha1"
CONTAINER = "main"

MASTER, OLD_MASTER = "dlrover-master", "master"
WORKER, PS, CHIEF, EVALUATOR = "worker", "ps", "chief", "evaluator"
TRAINING_ROLES = (CHIEF, WORKER, PS, EVALUATOR)
"""The roles that train, the leading one first."""
ROLES = (MASTER, OLD_MASTER, *TRAINING_ROLES)

ALLREDUCE, PARAMETER_SERVER = "AllreduceStrategy", "ParameterServerStrategy"
CUSTOM, LOCAL = "CustomStrategy", "Local"
STRATEGIES = (ALLREDUCE, PARAMETER_SERVER, CUSTOM, LOCAL)
MANUAL_MODES = ("manual", "manunal")
"""Upstream's constant has the second spelling."""
MODES = (*MANUAL_MODES, "single-job", "cluster")

NODES_ANNOTATION = "gangline.dev/nodes"
"""On a job: ``MIN:MAX`` workers, where ``--nnodes`` cannot be read off the command."""
PENDING_TIMEOUT_ANNOTATION = "pending_timeout"
"""On a job, as DLRover has it: ``restartTimeout`` of roles that have none."""
PENDING_STRATEGY_ANNOTATION = "pending_fail_strategy"
"""On a job: -1 or 0, pods may wait for ever; 1, until too few are at work; 2, none may."""
ELASTIC_MODE_ANNOTATION = "training_elastic_mode"
"""On a job: told to pods as ``DLROVER_TRAINING_ELASTIC_MODE``."""
PENDING_STRATEGIES = ("-1", "0", "1", "2")
IGNORED_ANNOTATIONS = {
    "service_type": "agents and master speak a protocol of their own",
    "pre_check_ops": "a gang starts as a whole, and nodes are checked by --network-check",
    "pre_check_bypass": "a gang starts as a whole, and nodes are checked by --network-check",
    "enable_dashboard": "the job is shown by gangline get and gangline dashboard",
    "dashboard_port": "the job is shown by gangline get and gangline dashboard",
}
"""Arguments of DLRover's master that jobs carry as annotations, and why they do nothing here."""
SCALE_TYPE_LABEL = "scale-type"
"""On a plan: ``manual`` (or nothing) from a person, ``auto`` from a program."""
AUTO = "auto"

HIGH, LOW = "high", "low"
PHASE_SUCCEEDED, PHASE_FAILED = "Succeeded", "Failed"


def master_name(job: str) -> str:
    """Name the service of a job's master, and what belongs to the master: account, journal."""
    return f"elasticjob-{job}-{MASTER}"


class ElasticReplicaSpec(Wire):
    """The pods of one role."""

    replicas: Annotated[int | None, about("How many pods; 1 when not given.", minimum=0)] = None
    template: Annotated[FreeForm, about("What the pods look like.", shape=PodTemplateSpec)] = {}
    restart_policy: Annotated[
        str | None,
        about(
            "Which failures make a pod anew: Always and OnFailure all of them, otherwise those "
            "that starting again can help. The template's counts if this is not given.",
            values=("Always", "OnFailure", "Never", "ExitCode"),
        ),
    ] = None
    restart_count: Annotated[
        int | None,
        about("How often each rank may be made anew after a failure; 3 if not given.", minimum=0),
    ] = None
    restart_timeout: Annotated[
        int | None,
        about("Seconds a pod may wait for its node while too few others run.", minimum=0),
    ] = None
    auto_scale: Annotated[
        bool | None,
        about("False keeps plans of programs (scale-type: auto) from this role."),
    ] = None
    priority: Annotated[
        str | None,
        about("A priority class; 0.5 gives half of the pods the class high, the others low."),
    ] = None
    critical_nodes: Annotated[
        str | None,
        about(
            "Ranks without which the job fails: all, none, or RANK:RESTARTS,…; if not given, "
            "worker 0 of a job with parameter servers."
        ),
    ] = None
    batch_scheduler: Annotated[str | None, about("Upstream's; not read.")] = None


class EnvVariable(Wire):
    """A variable of all pods."""

    name: Annotated[str, about("Name; the key of the map when not given.")] = ""
    value: Annotated[str, about("Value.")] = ""
    value_from: Annotated[FreeForm, about("Where the value comes from.")] = {}


class ElasticJobSpec(Wire):
    """What an ElasticJob runs."""

    distribution_strategy: Annotated[
        str | None,
        about(
            "How replicas train together: AllreduceStrategy, ParameterServerStrategy (when not "
            "given), CustomStrategy or Local.",
            values=("", *STRATEGIES),
        ),
    ] = None
    optimize_mode: Annotated[
        str | None,
        about(
            "Who may change the resources of the job: under manual only people.",
            values=("", *MODES),
        ),
    ] = None
    replica_specs: Annotated[
        dict[str, ElasticReplicaSpec],
        about(
            "Pods by role: worker, ps, chief, evaluator; dlrover-master for the master.",
            required=True,
        ),
    ] = {}
    resource_limits: Annotated[
        ResourceList, about("Most that all pods may ask for, also after plans and more memory.")
    ] = {}
    envs: Annotated[dict[str, EnvVariable], about("Variables of all pods.")] = {}
    suspend: Annotated[
        bool | None, about("True deletes the pods and holds the job until it is false again.")
    ] = None
    suspended: Annotated[bool | None, about("Older spelling of suspend.")] = None
    brain_service: Annotated[str, about("Told to the master.")] = ""
    enable_elastic_scheduling: Annotated[bool | None, about("Older; not read.")] = None
    enable_dynamic_sharding: Annotated[bool | None, about("Older; not read.")] = None
    run_policy: Annotated[
        RunPolicy,
        about("How it runs and ends. Its cleanPodPolicy is Running when not given."),
    ] = RunPolicy()


class NodeRecord(Wire):
    """What is remembered of one rank."""

    id: Annotated[int, about("Number of its pod.")] = 0
    relaunches: Annotated[int, about("How often it was made anew, whatever for.")] = 0
    failures: Annotated[int, about("How often because it had failed: counts by restartCount.")] = 0
    memory: Annotated[str, about("Memory that it gets since it ran out of it.")] = ""
    resources: Annotated[ResourceList, about("Resources that a plan gave it.")] = {}


class RoleRecord(Wire):
    """What is remembered of one role."""

    first: Annotated[int, about("Ranks below have their own as number if not listed.")] = 0
    next_id: Annotated[int, about("The next number.")] = 0
    nodes: Annotated[dict[str, NodeRecord], about("Ranks with a story, by rank.")] = {}
    made: Annotated[str, about("Ranks whose present pod has been seen, such as 0,2-4.")] = ""
    replicas: Annotated[int | None, about("Replicas by the last plan.")] = None
    over: Annotated[int | None, about("Replicas by the specification, then.")] = None
    absent: Annotated[str, about("Ranks that a plan removed.")] = ""
    leaving: Annotated[
        str, about("Ranks that were at work when the first had ended well: none follows them.")
    ] = ""
    resources: Annotated[ResourceList, about("Resources that a plan gave new pods.")] = {}


class NodeFaults(Wire):
    """Failures of the job's pods on one node of the cluster."""

    failures: Annotated[int, about("All of them.")] = 0
    faults: Annotated[int, about("Those that the node is to blame for.")] = 0


class ElasticMemory(JobStatus):
    """The status as far as the operator reads it again."""

    roles: Annotated[dict[str, RoleRecord], about("Numbers and sizes by role.")] = {}
    node_faults: Annotated[
        dict[str, NodeFaults], about("Nodes of the cluster on which pods failed.")
    ] = {}
    scale_plan: Annotated[str, about("Plan carried out last.")] = ""
    scale_plan_uid: Annotated[str, about("Its identity.")] = ""
    ps_hosts: Annotated[list[str], about("Addresses of parameter servers by a plan.")] = []


class ElasticJobStatus(ElasticMemory):
    """Where an ElasticJob is in its life."""

    phase: Annotated[str, about("Created, Pending, Running, Suspended, Succeeded or Failed.")] = ""


class ElasticJob(Object):
    """An elastic training job with a master."""

    spec: Annotated[ElasticJobSpec, about("What it runs.", required=True)] = ElasticJobSpec()
    status: Annotated[
        ElasticJobStatus, about("Where it is in its life; written by the operator.")
    ] = ElasticJobStatus()


class RoleScale(Wire):
    """The size of a role."""

    replicas: Annotated[int | None, about("How many pods.", minimum=0)] = None
    resource: Annotated[ResourceList, about("What each new pod asks for.")] = {}


class PodMeta(Wire):
    """One pod of a plan."""

    name: Annotated[str, about("Its name.")] = ""
    id: Annotated[int | None, about("Its number.", minimum=0)] = None
    type: Annotated[str, about("Its role; worker when not given.")] = ""
    rank_index: Annotated[int | None, about("Its rank.", minimum=0)] = None
    service: Annotated[str, about("Upstream's; not read.")] = ""
    resource: Annotated[ResourceList, about("What it asks for.")] = {}


class ScalePlanSpec(Wire):
    """What to change in a job that runs."""

    owner_job: Annotated[str, about("Name of the ElasticJob.", required=True)] = ""
    replica_resource_specs: Annotated[
        dict[str, RoleScale], about("Number and resources of pods by role.")
    ] = {}
    create_pods: Annotated[list[PodMeta], about("Pods to add.")] = []
    remove_pods: Annotated[list[PodMeta], about("Pods to remove.")] = []
    migrate_pods: Annotated[
        list[PodMeta], about("Pods to replace by others, with these resources.")
    ] = []
    ps_hosts: Annotated[list[str], about("Addresses of parameter servers, in order.")] = []


class ScalePlanStatus(Wire):
    """What became of a plan."""

    phase: Annotated[str, about("Pending, Scaling, Succeeded or Failed.")] = ""
    create_time: Annotated[datetime | None, about("When it was first looked at.")] = None
    finish_time: Annotated[datetime | None, about("When it was carried out, or failed.")] = None
    message: Annotated[str, about("Why it waits or failed.")] = ""


class ScalePlan(Object):
    """A change of the size of an ElasticJob, carried out once."""

    spec: Annotated[ScalePlanSpec, about("What to change.", required=True)] = ScalePlanSpec()
    status: Annotated[ScalePlanStatus, about("What became of it; written by the operator.")] = (
        ScalePlanStatus()
    )
