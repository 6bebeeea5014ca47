"""What a gang scheduler works with: PodGroup (a gang) and Queue (who pays), as Volcano has them."""

from datetime import datetime
from typing import Annotated

import msgspec

from gangline.api.describe import FreeForm, ResourceList, about
from gangline.api.meta import LabelSelector, Object, Wire

GROUP = "scheduling.volcano.sh"
VERSION = "v1beta1"
GROUP_NAME_ANNOTATION = "scheduling.k8s.io/group-name"
"""On a pod: the PodGroup of the same namespace that it belongs to."""
PLACES_ANNOTATION = "gangline.dev/places"
"""On a PodGroup: the places kept for its pods, as JSON (``KeptPlaces``)."""
RESERVED_ANNOTATION = "gangline.dev/reserved"
"""On a PodGroup: room that the scheduler keeps for it while it waits, as JSON
(``ReservedPlaces``)."""
CHECKPOINT_ANNOTATION = "gangline.dev/checkpointed-at"
"""On a PodGroup: when its work was last saved (RFC 3339). What was done since is lost when it is
evicted."""
RUN_TIME_ANNOTATION = "gangline.dev/run-time-seconds"
"""On a PodGroup: how long the gang runs at most. It may use room that is kept for others until
then."""
FAMILY_ANNOTATION = "gangline.dev/run-time-family"
"""On a PodGroup: gangs of one namespace with the same value run about equally long."""
LODGES_ANNOTATION = "gangline.dev/lodges-with"
"""On a PodGroup, by the scheduler: whose planned room it was let into because its like mostly end
in time. It has to go if it does not."""
HIERARCHY_ANNOTATION = "volcano.sh/hierarchy"
"""On a Queue: where it stands, from the root down (``root/eng/dev``)."""
HIERARCHY_WEIGHTS_ANNOTATION = "volcano.sh/hierarchy-weights"
"""On a Queue: the weight of each name in its hierarchy (``1/2/8``)."""
DEFAULT_QUEUE = "default"
ROOT_QUEUE = "root"


class KeptPlaces(Wire):
    """Room on nodes that is kept for pods which are about to be made again."""

    until: datetime
    """After this time anybody may have it."""
    nodes: dict[str, str] = {}
    """The node of each pod, by the pod's name."""


class ReservedPlaces(Wire):
    """Room on nodes that a gang will get: it is first in line, or others were evicted for it."""

    since: datetime
    nodes: dict[str, str] = {}
    """The node of each pod, by the pod's name."""
    cleared: bool = False
    """Others were evicted to make it."""


class NetworkTopology(Wire):
    """How close together the pods of a gang must be."""

    mode: Annotated[
        str, about("hard (when not given) insists, soft prefers.", values=("hard", "soft"))
    ] = ""
    highest_tier_allowed: Annotated[
        int | None, about("Highest network tier that may separate the pods.", minimum=0)
    ] = None
    highest_tier_name: Annotated[str, about("The same by name; not together with the number.")] = ""


class SubGroupPolicy(Wire):
    """Splits a gang into smaller gangs."""

    name: Annotated[str, about("Name of the policy.", required=True)] = ""
    network_topology: Annotated[NetworkTopology | None, about("How close together.")] = None
    sub_group_size: Annotated[int | None, about("Pods in one; 1 when not given.", minimum=1)] = None
    min_sub_groups: Annotated[
        int | None, about("How many must be complete; none when not given.", minimum=0)
    ] = None
    label_selector: Annotated[LabelSelector | None, about("The pods meant.")] = None
    match_label_keys: Annotated[
        list[str], about("Pods with equal values of these labels are one small gang.")
    ] = []


class PodGroupSpec(Wire):
    """What a gang needs."""

    min_member: Annotated[
        int, about("Pods that must fit at once, or none is placed.", minimum=0)
    ] = 0
    min_task_member: Annotated[dict[str, int], about("The same for each role.")] = {}
    queue: Annotated[
        str,
        about("Queue that pays; default when not given.", maxLength=253),
    ] = ""
    priority_class_name: Annotated[str, about("Class that its priority comes from.")] = ""
    min_resources: Annotated[
        ResourceList | None, about("Resources that must be free before its pods are made.")
    ] = None
    network_topology: Annotated[NetworkTopology | None, about("How close together.")] = None
    sub_group_policy: Annotated[
        list[SubGroupPolicy], about("Smaller gangs within it.", keys=("name",))
    ] = []


class PodGroupCondition(Wire):
    """One thing that holds of a gang."""

    type: Annotated[str, about("Unschedulable or Scheduled.")] = ""
    status: Annotated[str, about("True, False or Unknown.")] = ""
    transition_id: Annotated[str, about("Scheduling round that wrote it.")] = msgspec.field(
        name="transitionID", default=""
    )
    last_transition_time: Annotated[datetime | None, about("Since when.")] = None
    reason: Annotated[str, about("Why, for programs.")] = ""
    message: Annotated[str, about("Why, for people: what is missing, and how much.")] = ""


class PodGroupStatus(Wire):
    """What became of a gang."""

    phase: Annotated[
        str,
        about(
            "Pending (nothing promised), Inqueue (room is reserved), Running (placed), Unknown "
            "(broken and waiting), Completed."
        ),
    ] = ""
    conditions: Annotated[list[PodGroupCondition], about("What holds of it.")] = []
    running: Annotated[int, about("Pods running.")] = 0
    succeeded: Annotated[int, about("Pods that ended well.")] = 0
    failed: Annotated[int, about("Pods that failed.")] = 0


class PodGroup(Object):
    """A gang: pods that are placed all at once or not at all."""

    spec: Annotated[PodGroupSpec, about("What it needs.")] = PodGroupSpec()
    status: Annotated[PodGroupStatus, about("What became of it.")] = PodGroupStatus()


class QueueGuarantee(Wire):
    """What is kept free for a queue."""

    resource: Annotated[ResourceList, about("Resources kept free.")] = {}


class NodeGroups(Wire):
    """Groups of nodes that a queue must, or would like to, use (or avoid)."""

    required_during_scheduling_ignored_during_execution: Annotated[
        list[str], about("Groups that must be.")
    ] = []
    preferred_during_scheduling_ignored_during_execution: Annotated[
        list[str], about("Groups that are liked.")
    ] = []


class QueueAffinity(Wire):
    """Which nodes a queue uses."""

    node_group_affinity: Annotated[NodeGroups | None, about("Groups to use.")] = None
    node_group_anti_affinity: Annotated[NodeGroups | None, about("Groups to avoid.")] = None


class QueueSpec(Wire):
    """What a queue may use."""

    weight: Annotated[
        int | None,
        about("Its share next to others; 1 when not given.", minimum=1, maximum=65535),
    ] = None
    capability: Annotated[ResourceList, about("Most it may ever use.")] = {}
    deserved: Annotated[ResourceList, about("What it may take back from others.")] = {}
    guarantee: Annotated[QueueGuarantee | None, about("What is kept free for it.")] = None
    reclaimable: Annotated[
        bool | None, about("May others take back what it has too much? Yes when not given.")
    ] = None
    parent: Annotated[str, about("Queue that it is a part of; root when not given.")] = ""
    priority: Annotated[int, about("Higher goes first and is taken from last.", minimum=0)] = 0
    affinity: Annotated[QueueAffinity | None, about("Nodes it uses.")] = None
    dequeue_strategy: Annotated[
        str,
        about(
            "traverse (when not given) lets later jobs pass one that does not fit, fifo does not.",
            values=("fifo", "traverse"),
        ),
    ] = ""
    extend_clusters: Annotated[list[FreeForm], about("Further clusters; not used.")] = []
    type: Annotated[str, about("Kind of queue; not used.")] = ""


class QueueReservation(Wire):
    """Nodes set aside (old form)."""

    nodes: Annotated[list[str], about("The nodes.")] = []
    resource: Annotated[ResourceList, about("What they have.")] = {}


class QueueStatus(Wire):
    """What a queue holds."""

    state: Annotated[str, about("Open, Closed, Closing or Unknown.")] = ""
    pending: Annotated[int, about("Gangs waiting.")] = 0
    inqueue: Annotated[int, about("Gangs with room reserved.")] = 0
    running: Annotated[int, about("Gangs placed.")] = 0
    unknown: Annotated[int, about("Gangs broken.")] = 0
    completed: Annotated[int, about("Gangs done.")] = 0
    allocated: Annotated[ResourceList, about("Resources in use.")] = {}
    reservation: Annotated[QueueReservation | None, about("Nodes set aside.")] = None


class Queue(Object):
    """Shares a cluster among teams."""

    spec: Annotated[QueueSpec, about("What it may use.")] = QueueSpec()
    status: Annotated[QueueStatus, about("What it holds.")] = QueueStatus()
