"""ElasticJob and ScalePlan: elastic training, with DLRover's fields (``elastic.iml.github.io``).

Includes fields of older DLRover releases. Fields with a default may be omitted. Our own fields are
``runPolicy`` (deadlines, clean-up, queue, as in the other kinds) and the operator's records in the
status. There, a *node* is a pod with a number; a recreated replica keeps its rank and gets the next
number.

Fields of an ElasticJob with a syntax of their own: node ranges, priorities, critical ranks.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, NamedTuple

from gangline.api.core.pod import PodTemplateSpec
from gangline.api.job_names import ELASTIC_CONTAINER
from gangline.api.jobs.kubeflow import JobStatus, RunPolicy
from gangline.api.meta.field_doc import FreeForm, ResourceList, doc
from gangline.api.meta.objects import Object, Wire

GROUP = "elastic.iml.github.io"
VERSION = "v1alpha1"
CONTAINER = ELASTIC_CONTAINER

MASTER, LEGACY_MASTER = "dlrover-master", "master"
WORKER, PS, CHIEF, EVALUATOR = "worker", "ps", "chief", "evaluator"
TRAINING_ROLES = (CHIEF, WORKER, PS, EVALUATOR)
"""The roles that train; the leading role first."""
ROLES = (MASTER, LEGACY_MASTER, *TRAINING_ROLES)

ALLREDUCE, PARAMETER_SERVER = "AllreduceStrategy", "ParameterServerStrategy"
CUSTOM, LOCAL = "CustomStrategy", "Local"
STRATEGIES = (ALLREDUCE, PARAMETER_SERVER, CUSTOM, LOCAL)
MANUAL_MODES = ("manual", "manunal")
"""Upstream's constant has the second spelling."""
MODES = (*MANUAL_MODES, "single-job", "cluster")

NODES_ANNOTATION = "gangline.dev/nodes"
"""On a job: ``MIN:MAX`` workers, if ``--nnodes`` cannot be read from the command."""
PENDING_TIMEOUT_ANNOTATION = "pending_timeout"
"""On a job, as in DLRover: ``restartTimeout`` of roles that do not set it."""
PENDING_STRATEGY_ANNOTATION = "pending_fail_strategy"
"""On a job: whether pods may be pending without limit: -1 or 0, yes; 1, while enough others run; 2,
no.
"""
ELASTIC_MODE_ANNOTATION = "training_elastic_mode"
"""On a job: passed to pods as ``DLROVER_TRAINING_ELASTIC_MODE``."""
PENDING_STRATEGIES = ("-1", "0", "1", "2")
IGNORED_ANNOTATIONS = {
    "service_type": "agents and master speak a protocol of their own",
    "pre_check_ops": "pods of a gang start together, and --network-check checks the nodes",
    "pre_check_bypass": "pods of a gang start together, and --network-check checks the nodes",
    "enable_dashboard": "the job is shown by gangline get and gangline dashboard",
    "dashboard_port": "the job is shown by gangline get and gangline dashboard",
}
"""Arguments of DLRover's master that jobs carry as annotations, and why they have no effect here.
"""
SCALE_TYPE_LABEL = "scale-type"
"""On a plan: ``manual`` (or unset) if a person created it, ``auto`` if a program did."""
JOB_NAME_LABEL = "elasticjob-name"
"""On a plan: the name of its ElasticJob, where ``spec.ownerJob`` is not set."""
AUTO = "auto"

HIGH, LOW = "high", "low"
PHASE_SUCCEEDED, PHASE_FAILED = "Succeeded", "Failed"


def master_name(job: str) -> str:
    """Return the name of the master's service, account and journal."""
    return f"elasticjob-{job}-{MASTER}"


class ElasticReplicaSpec(Wire):
    """The pods of one role."""

    replicas: Annotated[int | None, doc("How many pods; 1 when not given.", minimum=0)] = None
    template: Annotated[FreeForm, doc("Template of the pods.", shape=PodTemplateSpec)] = {}
    restart_policy: Annotated[
        str | None,
        doc(
            "Failures after which a pod is recreated: all of them under Always and OnFailure, "
            "otherwise those that a restart can help. The template's policy is the default.",
            values=("Always", "OnFailure", "Never", "ExitCode"),
        ),
    ] = None
    restart_count: Annotated[
        int | None,
        doc("How often each rank may be recreated after a failure; 3 if not given.", minimum=0),
    ] = None
    restart_timeout: Annotated[
        int | None,
        doc("Seconds a pod may be pending while too few others run.", minimum=0),
    ] = None
    auto_scale: Annotated[
        bool | None,
        doc("False excludes this role from plans of programs (scale-type: auto)."),
    ] = None
    priority: Annotated[
        str | None,
        doc("A priority class; 0.5 gives half of the pods the class high, the others low."),
    ] = None
    critical_nodes: Annotated[
        str | None,
        doc(
            "Ranks without which the job fails: all, none, or RANK:RESTARTS,…; if not given, "
            "worker 0 of a job with parameter servers."
        ),
    ] = None
    batch_scheduler: Annotated[str | None, doc("Upstream's; not read.")] = None


class EnvVariable(Wire):
    """An environment variable of all pods."""

    name: Annotated[str, doc("Name; the key of the map when not given.")] = ""
    value: Annotated[str, doc("Value.")] = ""
    value_from: Annotated[FreeForm, doc("Where the value comes from.")] = {}


class ElasticJobSpec(Wire):
    """The desired state of an ElasticJob."""

    distribution_strategy: Annotated[
        str | None,
        doc(
            "How replicas train together: AllreduceStrategy, ParameterServerStrategy (when not "
            "given), CustomStrategy or Local.",
            values=("", *STRATEGIES),
        ),
    ] = None
    optimize_mode: Annotated[
        str | None,
        doc(
            "Whether programs may change the resources of the job: not under manual.",
            values=("", *MODES),
        ),
    ] = None
    replica_specs: Annotated[
        dict[str, ElasticReplicaSpec],
        doc(
            "Pods by role: worker, ps, chief, evaluator; dlrover-master for the master.",
            required=True,
        ),
    ] = {}
    resource_limits: Annotated[
        ResourceList,
        doc("Limit for the requests of all pods, also after plans and memory increases."),
    ] = {}
    envs: Annotated[dict[str, EnvVariable], doc("Variables of all pods.")] = {}
    suspend: Annotated[
        bool | None,
        doc("True deletes the pods and suspends the job until it is false again."),
    ] = None
    suspended: Annotated[bool | None, doc("Older spelling of suspend.")] = None
    brain_service: Annotated[str, doc("Passed to the master.")] = ""
    enable_elastic_scheduling: Annotated[bool | None, doc("Older; not read.")] = None
    enable_dynamic_sharding: Annotated[bool | None, doc("Older; not read.")] = None
    run_policy: Annotated[
        RunPolicy,
        doc("Run policy of the job. Its cleanPodPolicy is Running when not given."),
    ] = RunPolicy()


class NodeRecord(Wire):
    """The operator's record of one rank."""

    id: Annotated[int, doc("Number of its pod.")] = 0
    relaunches: Annotated[int, doc("How often it was recreated, for any reason.")] = 0
    failures: Annotated[
        int, doc("How often it was recreated after a failure: limited by restartCount.")
    ] = 0
    memory: Annotated[str, doc("Memory request since it ran out of memory.")] = ""
    resources: Annotated[ResourceList, doc("Resources set by a plan.")] = {}


class RoleRecord(Wire):
    """The operator's record of one role."""

    first: Annotated[int, doc("Unlisted ranks below this one have their rank as number.")] = 0
    next_id: Annotated[int, doc("Number of the next pod.")] = 0
    nodes: Annotated[
        dict[str, NodeRecord], doc("Ranks that were recreated or changed, by rank.")
    ] = {}
    made: Annotated[str, doc("Ranks whose current pod has been observed, such as 0,2-4.")] = ""
    replicas: Annotated[int | None, doc("Replicas set by the last plan.")] = None
    over: Annotated[int | None, doc("Replicas in the specification at that time.")] = None
    absent: Annotated[str, doc("Ranks removed by a plan.")] = ""
    leaving: Annotated[
        str, doc("Ranks that still ran when the first had succeeded: they are not replaced.")
    ] = ""
    resources: Annotated[ResourceList, doc("Resources of new pods, set by a plan.")] = {}


class NodeFaults(Wire):
    """Failures of the job's pods on one node of the cluster."""

    failures: Annotated[int, doc("Number of failures.")] = 0
    faults: Annotated[int, doc("Number of failures caused by the node.")] = 0


class ElasticJobRecord(JobStatus):
    """The part of the status that the operator reads back."""

    roles: Annotated[dict[str, RoleRecord], doc("Numbers and sizes by role.")] = {}
    node_faults: Annotated[
        dict[str, NodeFaults], doc("Nodes of the cluster on which pods failed.")
    ] = {}
    scale_plan: Annotated[str, doc("Plan that was executed last.")] = ""
    scale_plan_uid: Annotated[str, doc("Unique id of that plan.")] = ""
    ps_hosts: Annotated[list[str], doc("Addresses of parameter servers, set by a plan.")] = []


class ElasticJobStatus(ElasticJobRecord):
    """The observed state of an ElasticJob."""

    phase: Annotated[str, doc("Created, Pending, Running, Suspended, Succeeded or Failed.")] = ""


class ElasticJob(Object):
    """An elastic training job with a master."""

    spec: Annotated[ElasticJobSpec, doc("Desired state.", required=True)] = ElasticJobSpec()
    status: Annotated[ElasticJobStatus, doc("Observed state; written by the operator.")] = (
        ElasticJobStatus()
    )


class RoleScale(Wire):
    """The size of a role."""

    replicas: Annotated[int | None, doc("How many pods.", minimum=0)] = None
    resource: Annotated[ResourceList, doc("Requests of each new pod.")] = {}


class PodMeta(Wire):
    """One pod of a plan."""

    name: Annotated[str, doc("Its name.")] = ""
    id: Annotated[int | None, doc("Its number.", minimum=0)] = None
    type: Annotated[str, doc("Its role; worker when not given.")] = ""
    rank_index: Annotated[int | None, doc("Its rank.", minimum=0)] = None
    service: Annotated[str, doc("Upstream's; not read.")] = ""
    resource: Annotated[ResourceList, doc("Requests of the pod.")] = {}


class ScalePlanSpec(Wire):
    """The changes to a running job."""

    owner_job: Annotated[
        str, doc("Name of the ElasticJob; the label elasticjob-name when not given.")
    ] = ""
    replica_resource_specs: Annotated[
        dict[str, RoleScale], doc("Number and resources of pods by role.")
    ] = {}
    create_pods: Annotated[list[PodMeta], doc("Pods to add.")] = []
    remove_pods: Annotated[list[PodMeta], doc("Pods to remove.")] = []
    migrate_pods: Annotated[
        list[PodMeta], doc("Pods to replace by others, with these resources.")
    ] = []
    ps_hosts: Annotated[list[str], doc("Addresses of parameter servers, in order.")] = []


class ScalePlanStatus(Wire):
    """The progress of a plan."""

    phase: Annotated[str, doc("Pending, Scaling, Succeeded or Failed.")] = ""
    create_time: Annotated[datetime | None, doc("Time of the first attempt.")] = None
    finish_time: Annotated[datetime | None, doc("Time when it was executed or failed.")] = None
    message: Annotated[str, doc("Why it is pending or has failed.")] = ""


class ScalePlan(Object):
    """A change of the size of an ElasticJob, executed once."""

    spec: Annotated[ScalePlanSpec, doc("Changes to the job.", required=True)] = ScalePlanSpec()
    status: Annotated[ScalePlanStatus, doc("Observed state; written by the operator.")] = (
        ScalePlanStatus()
    )

    @property
    def job_name(self) -> str:
        """The name of the ElasticJob; empty if the plan names none."""
        return self.spec.owner_job or self.metadata.labels.get(JOB_NAME_LABEL, "")


_RANGE = re.compile(r"(\d{1,9})(?::(\d{1,9}))?", re.ASCII)
_DOLLAR = r"\$(?:\w+|\(\w+\)|\{\w+(?::?-\d+)?\})"
_OPEN_RANGE = re.compile(rf"(\d{{1,9}}):{_DOLLAR}", re.ASCII)
"""A range up to what a variable gives, as ``2:$NODE_NUM``: the number of workers."""
_FLAG = re.compile(rf"--nnodes(?:=|\s+)[\"']?(\d+(?::(?:\d+|{_DOLLAR}))?)(?![\w.:])", re.ASCII)
_VARIABLE_FLAG = re.compile(
    rf"--nnodes(?:=|\s+)[\"']?{_DOLLAR}(?![\w:])|--auto[-_]config\b", re.ASCII
)
"""A number of nodes that a variable gives, as ``$NODE_NUM``: no range."""
_UNIT = re.compile(r"(?:--node[-_]unit(?:=|\s+)|\bnode_unit=)[\"']?([1-9]\d{0,8})(?!\d)", re.ASCII)
_CRITICAL = re.compile(r"(\d{1,9})(?::(\d{1,9}))?", re.ASCII)
_VARIABLE = "PET_NNODES"


class WorkerRange(NamedTuple):
    """The minimum and maximum number of workers."""

    min_nodes: int
    max_nodes: int


def parse_node_range(text: str) -> WorkerRange | None:
    """Parse ``"4"`` or ``"2:8"``; None if the text is neither, or not 1 <= MIN <= MAX."""
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        return None
    least, most = int(match[1]), int(match[2] or match[1])
    return WorkerRange(least, most) if 1 <= least <= most else None


def nnodes_flag(container: Mapping[str, Any]) -> str:
    """Return the value of ``--nnodes`` in a command or environment, or an empty text."""
    match = _FLAG.search(_command_line(container))
    if match:
        return match[1]
    given = {variable.get("name"): variable.get("value") for variable in container.get("env") or ()}
    return str(given.get(_VARIABLE) or "")


def needs_all_nodes(container: Mapping[str, Any]) -> bool:
    """Whether a launcher waits for as many nodes as the job has: a variable gives the number."""
    return _VARIABLE_FLAG.search(_command_line(container)) is not None


def _command_line(container: Mapping[str, Any]) -> str:
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    return " ".join(str(word) for word in words)


def node_unit(container: Mapping[str, Any]) -> int:
    """Return the number of which each world has a multiple of nodes: ``--node-unit``, else 1."""
    match = _UNIT.search(_command_line(container))
    return int(match[1]) if match else 1


def job_node_range(
    annotations: Mapping[str, str], container: Mapping[str, Any], workers: int
) -> WorkerRange | None:
    """Return the node range of a job of so many workers: from its annotation, else its command.

    With ``--node-unit`` no world is smaller than the next multiple of the unit.
    """
    written = annotations.get(NODES_ANNOTATION) or nnodes_flag(container)
    if up_to_variable := _OPEN_RANGE.fullmatch(written):
        least = int(up_to_variable[1])
        written = f"{least}:{max(least, workers)}"
    nodes = parse_node_range(written)
    if nodes is None:
        return None
    unit = node_unit(container)
    least = -(-nodes.min_nodes // unit) * unit
    return WorkerRange(least, nodes.max_nodes) if least <= nodes.max_nodes else nodes


def parse_priority_fraction(priority: str) -> float | None:
    """Parse a priority that is a fraction from 0 to 1; None if it is the name of a class."""
    try:
        share = float(priority)
    except ValueError:
        return None
    return share if 0 <= share <= 1 else None


def is_number(priority: str) -> bool:
    try:
        float(priority)
    except ValueError:
        return False
    return True


def priority_class(priority: str, rank: int, replicas: int) -> str:
    """Return the priority class of one replica. With a fraction, the first ranks get ``high``."""
    share = parse_priority_fraction(priority)
    if share is None:
        return priority
    return HIGH if rank < round(share * replicas) else LOW


class CriticalRanks(NamedTuple):
    """The ranks without which a job fails, and how many restarts each may have."""

    all_ranks: bool
    ranks: Mapping[int, int | None]

    def __contains__(self, rank: object) -> bool:
        return self.all_ranks or rank in self.ranks


def parse_critical_ranks(text: str) -> CriticalRanks | None:
    """Parse ``all``, ``none`` or ``0:2,3``; None if the text is none of these."""
    words = text.strip().lower()
    if words in ("all", "none", ""):
        return CriticalRanks(words == "all", {})
    ranks: dict[int, int | None] = {}
    for part in words.split(","):
        match = _CRITICAL.fullmatch(part.strip())
        if match is None:
            return None
        ranks[int(match[1])] = int(match[2]) if match[2] else None
    return CriticalRanks(False, ranks)
