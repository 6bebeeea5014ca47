"""The status of a pod: phase, conditions, container states, addresses."""

from datetime import datetime
from typing import Annotated

import msgspec

from gangline.api.core.container import ResourceRequirements
from gangline.api.meta.field_doc import FreeForm, ResourceList, doc
from gangline.api.meta.objects import Condition, Wire

TERMINAL_PHASES = frozenset({"Succeeded", "Failed"})
"""Phases of a pod whose containers have ended and will not be restarted."""


class ContainerStateWaiting(Wire):
    """The container does not run (yet)."""

    reason: Annotated[str, doc("Why, such as ContainerCreating or CrashLoopBackOff.")] = ""
    message: Annotated[str, doc("Why, for users.")] = ""


class ContainerStateRunning(Wire):
    """The container runs."""

    started_at: Annotated[datetime | None, doc("Time of the start.")] = None


class ContainerStateTerminated(Wire):
    """The container has ended."""

    exit_code: Annotated[int, doc("Exit code; 128 + n after signal n.", required=True)] = 0
    signal: Annotated[int, doc("Signal that ended it.")] = 0
    reason: Annotated[str, doc("Such as Completed, Error or OOMKilled.")] = ""
    message: Annotated[str, doc("Termination message.")] = ""
    started_at: Annotated[datetime | None, doc("Time of the start.")] = None
    finished_at: Annotated[datetime | None, doc("Time of the end.")] = None
    container_id: Annotated[str, doc("Id of the ended container.")] = msgspec.field(
        name="containerID", default=""
    )


class ContainerState(Wire):
    """One of three states; waiting if none is given."""

    waiting: Annotated[ContainerStateWaiting | None, doc("Not running (yet).")] = None
    running: Annotated[ContainerStateRunning | None, doc("Running.")] = None
    terminated: Annotated[ContainerStateTerminated | None, doc("Terminated.")] = None


class ContainerStatus(Wire):
    """The observed state of one container."""

    name: Annotated[str, doc("Name of the container.", required=True)] = ""
    state: Annotated[ContainerState, doc("Current state.")] = ContainerState()
    last_state: Annotated[ContainerState, doc("State at the end of its last run.")] = (
        ContainerState()
    )
    ready: Annotated[bool, doc("Whether it passes its readiness probe.", required=True)] = False
    restart_count: Annotated[int, doc("Number of restarts.", required=True)] = 0
    image: Annotated[str, doc("Image that it runs.", required=True)] = ""
    image_id: Annotated[str, doc("Digest of the image.", required=True)] = msgspec.field(
        name="imageID", default=""
    )
    container_id: Annotated[str, doc("Id in the form TYPE://ID.")] = msgspec.field(
        name="containerID", default=""
    )
    started: Annotated[bool | None, doc("Whether it has passed its startup probe.")] = None
    allocated_resources: Annotated[ResourceList, doc("Resources that the node allocated.")] = {}
    resources: Annotated[ResourceRequirements | None, doc("Resources in effect.")] = None
    volume_mounts: Annotated[list[FreeForm], doc("State of its mounts.", keys=("mountPath",))] = []
    user: Annotated[FreeForm | None, doc("User it started as.")] = None
    allocated_resources_status: Annotated[list[FreeForm], doc("Health of its devices.")] = []
    stop_signal: Annotated[str, doc("Signal that asks it to stop.")] = ""


class PodIP(Wire):
    """An address of the pod."""

    ip: Annotated[str, doc("The address.", required=True)] = ""


class PodStatus(Wire):
    """The observed state of a pod, as its kubelet reports it."""

    phase: Annotated[
        str,
        doc(
            "Phase of the pod.",
            values=("Pending", "Running", "Succeeded", "Failed", "Unknown"),
        ),
    ] = ""
    conditions: Annotated[list[Condition], doc("Current conditions.", keys=("type",))] = []
    message: Annotated[str, doc("Why, for users.")] = ""
    reason: Annotated[str, doc("Why, such as Evicted.")] = ""
    nominated_node_name: Annotated[
        str, doc("Node on which victims are being preempted for it.")
    ] = ""
    host_ip: Annotated[str, doc("Address of its node.")] = msgspec.field(name="hostIP", default="")
    host_ips: Annotated[list[PodIP], doc("Addresses of its node.")] = msgspec.field(
        name="hostIPs", default_factory=list
    )
    pod_ip: Annotated[str, doc("Its address.")] = msgspec.field(name="podIP", default="")
    pod_ips: Annotated[list[PodIP], doc("Its addresses.", keys=("ip",))] = msgspec.field(
        name="podIPs", default_factory=list
    )
    start_time: Annotated[datetime | None, doc("Time when its kubelet accepted it.")] = None
    init_container_statuses: Annotated[list[ContainerStatus], doc("Init containers.")] = []
    container_statuses: Annotated[list[ContainerStatus], doc("Containers.")] = []
    ephemeral_container_statuses: Annotated[
        list[ContainerStatus], doc("Containers added for debugging.")
    ] = []
    qos_class: Annotated[
        str,
        doc(
            "Quality of service class; BestEffort is evicted first.",
            values=("Guaranteed", "Burstable", "BestEffort"),
        ),
    ] = ""
    observed_generation: Annotated[int | None, doc("Generation that was observed.")] = None
    resize: Annotated[str, doc("Progress of a resize.")] = ""
    resource_claim_statuses: Annotated[list[FreeForm], doc("Device claims.", keys=("name",))] = []
    resources: Annotated[ResourceRequirements | None, doc("Resources in effect.")] = None
    allocated_resources: Annotated[ResourceList, doc("Resources that the node allocated.")] = {}
