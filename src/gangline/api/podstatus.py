"""The status of a pod: phase, conditions, container states, addresses."""

from datetime import datetime
from typing import Annotated

import msgspec

from gangline.api.container import ResourceRequirements
from gangline.api.describe import FreeForm, ResourceList, about
from gangline.api.meta import Condition, Wire


class ContainerStateWaiting(Wire):
    """The container does not run (yet)."""

    reason: Annotated[str, about("Why, such as ContainerCreating or CrashLoopBackOff.")] = ""
    message: Annotated[str, about("Why, for users.")] = ""


class ContainerStateRunning(Wire):
    """The container runs."""

    started_at: Annotated[datetime | None, about("Time of the start.")] = None


class ContainerStateTerminated(Wire):
    """The container has ended."""

    exit_code: Annotated[int, about("Exit code; 128 + n after signal n.", required=True)] = 0
    signal: Annotated[int, about("Signal that ended it.")] = 0
    reason: Annotated[str, about("Such as Completed, Error or OOMKilled.")] = ""
    message: Annotated[str, about("Termination message.")] = ""
    started_at: Annotated[datetime | None, about("Time of the start.")] = None
    finished_at: Annotated[datetime | None, about("Time of the end.")] = None
    container_id: Annotated[str, about("Id of the ended container.")] = msgspec.field(
        name="containerID", default=""
    )


class ContainerState(Wire):
    """One of three states; waiting if none is given."""

    waiting: Annotated[ContainerStateWaiting | None, about("Not running (yet).")] = None
    running: Annotated[ContainerStateRunning | None, about("Running.")] = None
    terminated: Annotated[ContainerStateTerminated | None, about("Terminated.")] = None


class ContainerStatus(Wire):
    """The observed state of one container."""

    name: Annotated[str, about("Name of the container.", required=True)] = ""
    state: Annotated[ContainerState, about("Current state.")] = ContainerState()
    last_state: Annotated[ContainerState, about("State at the end of its last run.")] = (
        ContainerState()
    )
    ready: Annotated[bool, about("Whether it passes its readiness probe.", required=True)] = False
    restart_count: Annotated[int, about("Number of restarts.", required=True)] = 0
    image: Annotated[str, about("Image that it runs.", required=True)] = ""
    image_id: Annotated[str, about("Digest of the image.", required=True)] = msgspec.field(
        name="imageID", default=""
    )
    container_id: Annotated[str, about("Id in the form TYPE://ID.")] = msgspec.field(
        name="containerID", default=""
    )
    started: Annotated[bool | None, about("Whether it has passed its startup probe.")] = None
    allocated_resources: Annotated[ResourceList, about("Resources that the node allocated.")] = {}
    resources: Annotated[ResourceRequirements | None, about("Resources in effect.")] = None
    volume_mounts: Annotated[
        list[FreeForm], about("State of its mounts.", keys=("mountPath",))
    ] = []
    user: Annotated[FreeForm | None, about("User it started as.")] = None
    allocated_resources_status: Annotated[list[FreeForm], about("Health of its devices.")] = []
    stop_signal: Annotated[str, about("Signal that asks it to stop.")] = ""


class PodIP(Wire):
    """An address of the pod."""

    ip: Annotated[str, about("The address.", required=True)] = ""


class PodStatus(Wire):
    """The observed state of a pod, as its kubelet reports it."""

    phase: Annotated[
        str,
        about(
            "Phase of the pod.",
            values=("Pending", "Running", "Succeeded", "Failed", "Unknown"),
        ),
    ] = ""
    conditions: Annotated[list[Condition], about("Current conditions.", keys=("type",))] = []
    message: Annotated[str, about("Why, for users.")] = ""
    reason: Annotated[str, about("Why, such as Evicted.")] = ""
    nominated_node_name: Annotated[
        str, about("Node on which victims are being preempted for it.")
    ] = ""
    host_ip: Annotated[str, about("Address of its node.")] = msgspec.field(
        name="hostIP", default=""
    )
    host_ips: Annotated[list[PodIP], about("Addresses of its node.")] = msgspec.field(
        name="hostIPs", default_factory=list
    )
    pod_ip: Annotated[str, about("Its address.")] = msgspec.field(name="podIP", default="")
    pod_ips: Annotated[list[PodIP], about("Its addresses.", keys=("ip",))] = msgspec.field(
        name="podIPs", default_factory=list
    )
    start_time: Annotated[datetime | None, about("Time when its kubelet accepted it.")] = None
    init_container_statuses: Annotated[list[ContainerStatus], about("Init containers.")] = []
    container_statuses: Annotated[list[ContainerStatus], about("Containers.")] = []
    ephemeral_container_statuses: Annotated[
        list[ContainerStatus], about("Containers added for debugging.")
    ] = []
    qos_class: Annotated[
        str,
        about(
            "Quality of service class; BestEffort is evicted first.",
            values=("Guaranteed", "Burstable", "BestEffort"),
        ),
    ] = ""
    observed_generation: Annotated[int | None, about("Generation that was observed.")] = None
    resize: Annotated[str, about("Progress of a resize.")] = ""
    resource_claim_statuses: Annotated[list[FreeForm], about("Device claims.", keys=("name",))] = []
    resources: Annotated[ResourceRequirements | None, about("Resources in effect.")] = None
    allocated_resources: Annotated[ResourceList, about("Resources that the node allocated.")] = {}
