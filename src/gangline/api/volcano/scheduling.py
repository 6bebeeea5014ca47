"""The kinds of the gang scheduler: PodGroup (a gang) and Queue, as in Volcano."""

from datetime import datetime
from typing import Annotated

import msgspec

from gangline.api.meta.field_doc import CheckedResourceList, FreeForm, ResourceList, doc
from gangline.api.meta.objects import LabelSelector, Object, Wire

GROUP = "scheduling.volcano.sh"
VERSION = "v1beta1"
GROUP_NAME_ANNOTATION = "scheduling.k8s.io/group-name"
"""On a pod: the PodGroup of the same namespace that it belongs to."""
VOLCANO_GROUP_NAME_ANNOTATION = "scheduling.volcano.sh/group-name"
"""The same, by Volcano's own name. It and the following annotations describe the gang of a pod that
has not the annotation above.
"""
QUEUE_NAME_ANNOTATION = "scheduling.volcano.sh/queue-name"
GROUP_MIN_MEMBER_ANNOTATION = "scheduling.volcano.sh/group-min-member"
GROUP_MIN_RESOURCES_ANNOTATION = "scheduling.volcano.sh/group-min-resources"
"""Amounts as JSON."""
PREVIOUS_NODES_ANNOTATION = "gangline.dev/previous-nodes"
"""On a PodGroup: the previous nodes of its pods, reserved for their successors, as JSON."""
RESERVED_ANNOTATION = "gangline.dev/reserved"
"""On a PodGroup: nodes that the scheduler reserves for the pending gang, as JSON."""
JOINING_PODS_ANNOTATION = "gangline.dev/joining-pods"
"""On a PodGroup: pods that are created after its members run, as JSON. The gang starts only where
they fit too, and their resources stay reserved.
"""
CHECKPOINT_ANNOTATION = "gangline.dev/checkpointed-at"
"""On a PodGroup: time of its last checkpoint (RFC 3339). An eviction loses the work done since."""
RUN_TIME_ANNOTATION = "gangline.dev/run-time-seconds"
"""On a PodGroup: maximum run time of the gang. It may use nodes reserved for others until then."""
WAITING_TIME_ANNOTATIONS = ("sla-waiting-time", "volcano.sh/sla-waiting-time")
"""On a PodGroup: after this time (a Go duration) it is admitted, and served first in its queue."""
PROTECTED_RUN_TIME_ANNOTATION = "gangline.dev/protected-run-time-seconds"
"""On a Queue or a PriorityClass: for how long a started gang is not evicted for other gangs."""
HIERARCHY_ANNOTATION = "volcano.sh/hierarchy"
"""On a Queue: its position, from the root down (``root/eng/dev``)."""
HIERARCHY_WEIGHTS_ANNOTATION = "volcano.sh/hierarchy-weights"
"""On a Queue: the weight of each name in its hierarchy (``1/2/8``)."""
DEFAULT_QUEUE = "default"
ROOT_QUEUE = "root"


class PreviousNodesAnnotation(Wire):
    """Nodes that are reserved for pods which are about to be recreated."""

    until: datetime
    """The reservation ends at this time."""
    nodes: dict[str, str] = {}
    """The node of each pod, by pod name."""


class ReservedNodesAnnotation(Wire):
    """Nodes that are reserved for a pending gang: it is first in order, or caused evictions."""

    since: datetime
    nodes: dict[str, str] = {}
    """The node of each pod, by pod name."""
    cleared: bool = False
    """Whether pods were evicted for this reservation."""


class JoiningPods(Wire):
    """Pods of one role that join a gang later."""

    names: list[str]
    role: str = ""
    spec: FreeForm = {}
    """What its placement depends on."""


class NetworkTopology(Wire):
    """How close together in the network the pods of a gang must be."""

    mode: Annotated[
        str,
        doc("hard requires it, soft prefers it.", values=("hard", "soft"), default="hard"),
    ] = ""
    highest_tier_allowed: Annotated[
        int | None, doc("Highest network tier that may separate the pods.", minimum=0)
    ] = None
    highest_tier_name: Annotated[str, doc("The same by name; not together with the number.")] = ""


class SubGroupPolicy(Wire):
    """Splits a gang into subgroups."""

    name: Annotated[str, doc("Name of the policy.", required=True)] = ""
    network_topology: Annotated[NetworkTopology | None, doc("Network distance of the pods.")] = None
    sub_group_size: Annotated[
        int | None, doc("Pods of a subgroup; 1 when not given.", minimum=1)
    ] = None
    min_sub_groups: Annotated[
        int | None, doc("Minimum number of complete subgroups; 0 when not given.", minimum=0)
    ] = None
    label_selector: Annotated[LabelSelector | None, doc("Pods of the subgroups.")] = None
    match_label_keys: Annotated[
        list[str], doc("Pods with equal values of these labels are one subgroup.")
    ] = []


class PodGroupSpec(Wire):
    """The requirements of a gang."""

    min_member: Annotated[
        int, doc("Pods that must fit together, or none is placed.", minimum=0)
    ] = 0
    min_task_member: Annotated[dict[str, int], doc("The same for each role.")] = {}
    queue: Annotated[
        str,
        doc("Queue of the gang.", maxLength=253, default=DEFAULT_QUEUE),
    ] = ""
    priority_class_name: Annotated[str, doc("Class that its priority comes from.")] = ""
    min_resources: Annotated[
        CheckedResourceList | None, doc("Resources that must be free before its pods are created.")
    ] = None
    network_topology: Annotated[NetworkTopology | None, doc("Network distance of the pods.")] = None
    sub_group_policy: Annotated[
        list[SubGroupPolicy], doc("Subgroups of the gang.", keys=("name",))
    ] = []


class PodGroupCondition(Wire):
    """One condition of a gang."""

    type: Annotated[str, doc("Unschedulable, Scheduled or StartExpected.")] = ""
    status: Annotated[str, doc("True, False or Unknown.")] = ""
    transition_id: Annotated[str, doc("Scheduling cycle that wrote it.")] = msgspec.field(
        name="transitionID", default=""
    )
    last_transition_time: Annotated[datetime | None, doc("Time of the last change.")] = None
    reason: Annotated[str, doc("Why, for programs.")] = ""
    message: Annotated[str, doc("Why, for users: missing resources and amounts.")] = ""


class PodGroupStatus(Wire):
    """The observed state of a gang."""

    phase: Annotated[
        str,
        doc(
            "Pending (nothing reserved), Inqueue (resources reserved), Running (placed), Unknown "
            "(members lost), Completed."
        ),
    ] = ""
    conditions: Annotated[list[PodGroupCondition], doc("Current conditions.")] = []
    running: Annotated[int, doc("Pods running.")] = 0
    succeeded: Annotated[int, doc("Pods that succeeded.")] = 0
    failed: Annotated[int, doc("Pods that failed.")] = 0


class PodGroup(Object):
    """A gang: either all of its pods are placed, or none."""

    spec: Annotated[PodGroupSpec, doc("Desired state.")] = PodGroupSpec()
    status: Annotated[PodGroupStatus, doc("Observed state.")] = PodGroupStatus()


class QueueGuarantee(Wire):
    """Resources reserved for a queue."""

    resource: Annotated[CheckedResourceList, doc("Guaranteed resources.")] = {}


class NodeGroups(Wire):
    """Node groups that a queue must, or preferably does, use (or avoid)."""

    required_during_scheduling_ignored_during_execution: Annotated[
        list[str], doc("Required groups.")
    ] = []
    preferred_during_scheduling_ignored_during_execution: Annotated[
        list[str], doc("Preferred groups.")
    ] = []


class QueueAffinity(Wire):
    """The node groups that a queue uses."""

    node_group_affinity: Annotated[NodeGroups | None, doc("Groups to use.")] = None
    node_group_anti_affinity: Annotated[NodeGroups | None, doc("Groups to avoid.")] = None


class QueueSpec(Wire):
    """The limits and share of a queue."""

    weight: Annotated[
        int | None,
        doc("Weight of its share.", minimum=1, maximum=65535, default=1),
    ] = None
    capability: Annotated[CheckedResourceList, doc("Limit of its usage.")] = {}
    deserved: Annotated[
        CheckedResourceList, doc("Its fair share, up to which it may reclaim from others.")
    ] = {}
    guarantee: Annotated[QueueGuarantee | None, doc("Guaranteed resources.")] = None
    reclaimable: Annotated[
        bool | None,
        doc("Whether others may reclaim its usage above its share; true when not given."),
    ] = None
    parent: Annotated[str, doc("Parent queue; root when not given.")] = ""
    priority: Annotated[
        int, doc("Higher ones are served first and reclaimed from last.", minimum=0)
    ] = 0
    affinity: Annotated[QueueAffinity | None, doc("Nodes it uses.")] = None
    dequeue_strategy: Annotated[
        str,
        doc(
            "traverse tries later jobs if one does not fit, fifo does not.",
            values=("fifo", "traverse"),
            default="traverse",
        ),
    ] = ""
    extend_clusters: Annotated[list[FreeForm], doc("Further clusters; not used.")] = []
    type: Annotated[str, doc("Kind of queue; not used.")] = ""


class QueueReservation(Wire):
    """Nodes set aside (old form)."""

    nodes: Annotated[list[str], doc("The nodes.")] = []
    resource: Annotated[ResourceList, doc("What they have.")] = {}


class QueueStatus(Wire):
    """The usage of a queue."""

    state: Annotated[str, doc("Open, Closed, Closing or Unknown.", default="Open")] = ""
    pending: Annotated[int, doc("Pending gangs.")] = 0
    inqueue: Annotated[int, doc("Gangs with reserved resources.")] = 0
    running: Annotated[int, doc("Placed gangs.")] = 0
    unknown: Annotated[int, doc("Gangs with lost members.")] = 0
    completed: Annotated[int, doc("Completed gangs.")] = 0
    allocated: Annotated[ResourceList, doc("Resources in use.")] = {}
    reservation: Annotated[QueueReservation | None, doc("Nodes set aside.")] = None


class Queue(Object):
    """Shares a cluster among teams."""

    spec: Annotated[QueueSpec, doc("Desired state.")] = QueueSpec()
    # A default, so that a queue is open as soon as it exists, whichever component makes it:
    # Volcano's scheduler takes no pod of a queue in another state.
    status: Annotated[QueueStatus, doc("Observed state.", default={"state": "Open"})] = (
        QueueStatus()
    )
