"""A node: a machine that runs pods."""

from datetime import datetime
from typing import Annotated

import msgspec

from gangline.api.describe import FreeForm, ResourceList, about
from gangline.api.meta import Condition, Object, Wire


class Taint(Wire):
    """Keeps pods away that do not tolerate it."""

    key: Annotated[str, about("Key of the taint.", required=True)] = ""
    value: Annotated[str, about("Value of the taint.")] = ""
    effect: Annotated[
        str,
        about(
            "Effect on pods that do not tolerate it.",
            required=True,
            values=("NoSchedule", "PreferNoSchedule", "NoExecute"),
        ),
    ] = ""
    time_added: Annotated[datetime | None, about("Time when it was added (NoExecute).")] = None


class NodeSpec(Wire):
    """The desired state of a node."""

    pod_cidr: Annotated[str, about("Addresses of its pods.")] = msgspec.field(
        name="podCIDR", default=""
    )
    pod_cidrs: Annotated[list[str], about("Addresses of its pods.")] = msgspec.field(
        name="podCIDRs", default_factory=list
    )
    provider_id: Annotated[str, about("Id of the node at the cloud provider.")] = msgspec.field(
        name="providerID", default=""
    )
    unschedulable: Annotated[bool, about("No new pods are scheduled here (cordoned).")] = False
    taints: Annotated[list[Taint], about("Taints of the node.")] = []
    config_source: Annotated[FreeForm | None, about("No longer used.")] = None
    external_id: Annotated[str, about("No longer used.")] = msgspec.field(
        name="externalID", default=""
    )


class NodeAddress(Wire):
    """A name or address of a node."""

    type: Annotated[str, about("Hostname, InternalIP, ExternalIP, ...", required=True)] = ""
    address: Annotated[str, about("The name or address.", required=True)] = ""


class DaemonEndpoint(Wire):
    """A port of a daemon on the node."""

    port: Annotated[int, about("The port.", required=True)] = msgspec.field(name="Port", default=0)


class NodeDaemonEndpoints(Wire):
    """Daemons of the node."""

    kubelet_endpoint: Annotated[DaemonEndpoint | None, about("The kubelet.")] = None


class NodeSystemInfo(Wire):
    """Software and hardware of the node."""

    machine_id: Annotated[str, about("Id of the machine.", required=True)] = msgspec.field(
        name="machineID", default=""
    )
    system_uuid: Annotated[str, about("UUID of the machine.", required=True)] = msgspec.field(
        name="systemUUID", default=""
    )
    boot_id: Annotated[str, about("Id of this boot.", required=True)] = msgspec.field(
        name="bootID", default=""
    )
    kernel_version: Annotated[str, about("Kernel.", required=True)] = ""
    os_image: Annotated[str, about("Distribution.", required=True)] = ""
    container_runtime_version: Annotated[str, about("Container runtime.", required=True)] = ""
    kubelet_version: Annotated[str, about("Kubelet.", required=True)] = ""
    kube_proxy_version: Annotated[str, about("Service proxy.", required=True)] = ""
    operating_system: Annotated[str, about("Such as linux.", required=True)] = ""
    architecture: Annotated[str, about("Such as amd64.", required=True)] = ""
    swap: Annotated[FreeForm | None, about("Swap space.")] = None


class ContainerImage(Wire):
    """An image on the node."""

    names: Annotated[list[str], about("Its names.")] = []
    size_bytes: Annotated[int, about("Its size in bytes.")] = 0


class AttachedVolume(Wire):
    """A volume attached to the node."""

    name: Annotated[str, about("Name of the volume.", required=True)] = ""
    device_path: Annotated[str, about("Device it appears as.", required=True)] = ""


class NodeStatus(Wire):
    """The capacity and state of a node, as its kubelet reports it."""

    capacity: Annotated[ResourceList, about("Total resources.")] = {}
    allocatable: Annotated[ResourceList, about("Resources available to pods.")] = {}
    phase: Annotated[str, about("No longer used.")] = ""
    conditions: Annotated[list[Condition], about("Current conditions.", keys=("type",))] = []
    addresses: Annotated[list[NodeAddress], about("Addresses of the node.", keys=("type",))] = []
    daemon_endpoints: Annotated[NodeDaemonEndpoints, about("Its daemons.")] = NodeDaemonEndpoints()
    node_info: Annotated[NodeSystemInfo, about("Software and hardware.")] = NodeSystemInfo()
    images: Annotated[list[ContainerImage], about("Images on the node.")] = []
    volumes_in_use: Annotated[list[str], about("Volumes mounted.")] = []
    volumes_attached: Annotated[list[AttachedVolume], about("Volumes attached.")] = []
    config: Annotated[FreeForm | None, about("No longer used.")] = None
    runtime_handlers: Annotated[list[FreeForm], about("Container runtimes.")] = []
    features: Annotated[FreeForm | None, about("Features of its container runtime.")] = None


class Node(Object):
    """A machine that runs pods."""

    spec: Annotated[NodeSpec, about("Desired state.")] = NodeSpec()
    status: Annotated[NodeStatus, about("Observed state.")] = NodeStatus()
