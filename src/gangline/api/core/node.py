"""A node: a machine that runs pods."""

from datetime import datetime
from typing import Annotated

import msgspec

from gangline.api.meta.field_doc import FreeForm, ResourceList, doc
from gangline.api.meta.objects import Condition, Object, Wire


class Taint(Wire):
    """Keeps pods away that do not tolerate it."""

    key: Annotated[str, doc("Key of the taint.", required=True)] = ""
    value: Annotated[str, doc("Value of the taint.")] = ""
    effect: Annotated[
        str,
        doc(
            "Effect on pods that do not tolerate it.",
            required=True,
            values=("NoSchedule", "PreferNoSchedule", "NoExecute"),
        ),
    ] = ""
    time_added: Annotated[datetime | None, doc("Time when it was added (NoExecute).")] = None


class NodeSpec(Wire):
    """The desired state of a node."""

    pod_cidr: Annotated[str, doc("Addresses of its pods.")] = msgspec.field(
        name="podCIDR", default=""
    )
    pod_cidrs: Annotated[list[str], doc("Addresses of its pods.")] = msgspec.field(
        name="podCIDRs", default_factory=list
    )
    provider_id: Annotated[str, doc("Id of the node at the cloud provider.")] = msgspec.field(
        name="providerID", default=""
    )
    unschedulable: Annotated[bool, doc("No new pods are scheduled here (cordoned).")] = False
    taints: Annotated[list[Taint], doc("Taints of the node.")] = []
    config_source: Annotated[FreeForm | None, doc("No longer used.")] = None
    external_id: Annotated[str, doc("No longer used.")] = msgspec.field(
        name="externalID", default=""
    )


class NodeAddress(Wire):
    """A name or address of a node."""

    type: Annotated[str, doc("Hostname, InternalIP, ExternalIP, ...", required=True)] = ""
    address: Annotated[str, doc("The name or address.", required=True)] = ""


class DaemonEndpoint(Wire):
    """A port of a daemon on the node."""

    port: Annotated[int, doc("The port.", required=True)] = msgspec.field(name="Port", default=0)


class NodeDaemonEndpoints(Wire):
    """Daemons of the node."""

    kubelet_endpoint: Annotated[DaemonEndpoint | None, doc("The kubelet.")] = None


class NodeSystemInfo(Wire):
    """Software and hardware of the node."""

    machine_id: Annotated[str, doc("Id of the machine.", required=True)] = msgspec.field(
        name="machineID", default=""
    )
    system_uuid: Annotated[str, doc("UUID of the machine.", required=True)] = msgspec.field(
        name="systemUUID", default=""
    )
    boot_id: Annotated[str, doc("Id of this boot.", required=True)] = msgspec.field(
        name="bootID", default=""
    )
    kernel_version: Annotated[str, doc("Kernel.", required=True)] = ""
    os_image: Annotated[str, doc("Distribution.", required=True)] = ""
    container_runtime_version: Annotated[str, doc("Container runtime.", required=True)] = ""
    kubelet_version: Annotated[str, doc("Kubelet.", required=True)] = ""
    kube_proxy_version: Annotated[str, doc("Service proxy.", required=True)] = ""
    operating_system: Annotated[str, doc("Such as linux.", required=True)] = ""
    architecture: Annotated[str, doc("Such as amd64.", required=True)] = ""
    swap: Annotated[FreeForm | None, doc("Swap space.")] = None


class ContainerImage(Wire):
    """An image on the node."""

    names: Annotated[list[str], doc("Its names.")] = []
    size_bytes: Annotated[int, doc("Its size in bytes.")] = 0


class AttachedVolume(Wire):
    """A volume attached to the node."""

    name: Annotated[str, doc("Name of the volume.", required=True)] = ""
    device_path: Annotated[str, doc("Device it appears as.", required=True)] = ""


class NodeStatus(Wire):
    """The capacity and state of a node, as its kubelet reports it."""

    capacity: Annotated[ResourceList, doc("Total resources.")] = {}
    allocatable: Annotated[ResourceList, doc("Resources available to pods.")] = {}
    phase: Annotated[str, doc("No longer used.")] = ""
    conditions: Annotated[list[Condition], doc("Current conditions.", keys=("type",))] = []
    addresses: Annotated[list[NodeAddress], doc("Addresses of the node.", keys=("type",))] = []
    daemon_endpoints: Annotated[NodeDaemonEndpoints, doc("Its daemons.")] = NodeDaemonEndpoints()
    node_info: Annotated[NodeSystemInfo, doc("Software and hardware.")] = NodeSystemInfo()
    images: Annotated[list[ContainerImage], doc("Images on the node.")] = []
    volumes_in_use: Annotated[list[str], doc("Volumes mounted.")] = []
    volumes_attached: Annotated[list[AttachedVolume], doc("Volumes attached.")] = []
    config: Annotated[FreeForm | None, doc("No longer used.")] = None
    runtime_handlers: Annotated[list[FreeForm], doc("Container runtimes.")] = []
    features: Annotated[FreeForm | None, doc("Features of its container runtime.")] = None


class Node(Object):
    """A machine that runs pods."""

    spec: Annotated[NodeSpec, doc("Desired state.")] = NodeSpec()
    status: Annotated[NodeStatus, doc("Observed state.")] = NodeStatus()
