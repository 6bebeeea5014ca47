"""What became of a pod: phase, conditions, the states of its containers, its addresses."""

from datetime import datetime
from typing import Annotated

import msgspec

from gangline.api.container import ResourceRequirements
from gangline.api.describe import FreeForm, ResourceList, about
from gangline.api.meta import Condition, Wire


class ContainerStateWaiting(Wire):
    """Not running yet, or not again yet."""

    reason: Annotated[str, about("Why, such as ContainerCreating or CrashLoopBackOff.")] = ""
    message: Annotated[str, about("Why, for people.")] = ""


class ContainerStateRunning(Wire):
    """Running."""

    started_at: Annotated[datetime | None, about("Since when.")] = None


class ContainerStateTerminated(Wire):
    """Ended, well or badly."""

    exit_code: Annotated[int, about("Exit code; 128 + n after signal n.", required=True)] = 0
    signal: Annotated[int, about("Signal that ended it.")] = 0
    reason: Annotated[str, about("Such as Completed, Error or OOMKilled.")] = ""
    message: Annotated[str, about("Last words.")] = ""
    started_at: Annotated[datetime | None, about("When it started.")] = None
    finished_at: Annotated[datetime | None, about("When it ended.")] = None
    container_id: Annotated[str, about("Id of the ended container.")] = msgspec.field(
        name="containerID", default=""
    )


class ContainerState(Wire):
    """One of three states; waiting when none is given."""

    waiting: Annotated[ContainerStateWaiting | None, about("Not running (yet).")] = None
    running: Annotated[ContainerStateRunning | None, about("Running.")] = None
    terminated: Annotated[ContainerStateTerminated | None, about("Ended.")] = None


class ContainerStatus(Wire):
    """What became of one container."""

    name: Annotated[str, about("Name of the container.", required=True)] = ""
    state: Annotated[ContainerState, about("How it is now.")] = ContainerState()
    last_state: Annotated[ContainerState, about("How its last run ended.")] = ContainerState()
    ready: Annotated[bool, about("Does it pass its readiness probe?", required=True)] = False
    restart_count: Annotated[int, about("How often it was restarted.", required=True)] = 0
    image: Annotated[str, about("Image that it runs.", required=True)] = ""
    image_id: Annotated[str, about("Digest of the image.", required=True)] = msgspec.field(
        name="imageID", default=""
    )
    container_id: Annotated[str, about("Id in the form TYPE://ID.")] = msgspec.field(
        name="containerID", default=""
    )
    started: Annotated[bool | None, about("Did it pass its startup probe?")] = None
    allocated_resources: Annotated[ResourceList, about("What the node set aside.")] = {}
    resources: Annotated[ResourceRequirements | None, about("What is in force.")] = None
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
    """What became of a pod, as far as its node told."""

    phase: Annotated[
        str,
        about(
            "Where it is in its life.",
            values=("Pending", "Running", "Succeeded", "Failed", "Unknown"),
        ),
    ] = ""
    conditions: Annotated[list[Condition], about("What holds of it.", keys=("type",))] = []
    message: Annotated[str, about("Why it is so, for people.")] = ""
    reason: Annotated[str, about("Why it is so, such as Evicted.")] = ""
    nominated_node_name: Annotated[str, about("Node that is being cleared for it.")] = ""
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
    start_time: Annotated[datetime | None, about("When its node took it up.")] = None
    init_container_statuses: Annotated[list[ContainerStatus], about("Init containers.")] = []
    container_statuses: Annotated[list[ContainerStatus], about("Containers.")] = []
    ephemeral_container_statuses: Annotated[
        list[ContainerStatus], about("Containers added for debugging.")
    ] = []
    qos_class: Annotated[
        str,
        about("Who is evicted first.", values=("Guaranteed", "Burstable", "BestEffort")),
    ] = ""
    observed_generation: Annotated[int | None, about("Generation that this is about.")] = None
    resize: Annotated[str, about("How a change of resources goes.")] = ""
    resource_claim_statuses: Annotated[list[FreeForm], about("Device claims.", keys=("name",))] = []
    resources: Annotated[ResourceRequirements | None, about("What is in force.")] = None
    allocated_resources: Annotated[ResourceList, about("What the node set aside.")] = {}
