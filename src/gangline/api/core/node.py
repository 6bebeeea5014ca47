"""A node: a machine that runs pods."""

from datetime import datetime
from typing import Annotated

import msgspec

from gangline.api.meta.field_doc import FreeForm, ResourceList, field_doc
from gangline.api.meta.objects import Condition, Object, Wire


class Taint(Wire):
    """Keeps pods away that do not tolerate it."""

    key: Annotated[str, field_doc("Key of the taint.", required=True)] = ""
    value: Annotated[str, field_doc("Value of the taint.")] = ""
    effect: Annotated[
        str,
        field_doc(
            "Effect on pods that do not tolerate it.",
            required=True,
            values=("NoSchedule", "PreferNoSchedule", "NoExecute"),
        ),
    ] = ""
    time_added: Annotated[datetime | None, field_doc("Time when it was added (NoExecute).")] = None


class NodeSpec(Wire):
    """The desired state of a node."""

    pod_cidr: Annotated[str, field_doc("Addresses of its pods.")] = msgspec.field(
        name="podCIDR", default=""
    )
    pod_cidrs: Annotated[list[str], field_doc("Addresses of its pods.")] = msgspec.field(
        name="podCIDRs", default_factory=list
    )
    provider_id: Annotated[str, field_doc("Id of the node at the cloud provider.")] = msgspec.field(
        name="providerID", default=""
    )
    unschedulable: Annotated[bool, field_doc("No new pods are scheduled here (cordoned).")] = False
    taints: Annotated[list[Taint], field_doc("Taints of the node.")] = []
    config_source: Annotated[FreeForm | None, field_doc("No longer used.")] = None
    external_id: Annotated[str, field_doc("No longer used.")] = msgspec.field(
        name="externalID", default=""
    )


class NodeAddress(Wire):
    """A name or address of a node."""

    type: Annotated[str, field_doc("Hostname, InternalIP, ExternalIP, ...", required=True)] = ""
    address: Annotated[str, field_doc("The name or address.", required=True)] = ""


class DaemonEndpoint(Wire):
    """A port of a daemon on the node."""

    port: Annotated[int, field_doc("The port.", required=True)] = msgspec.field(
        name="Port", default=0
    )


class NodeDaemonEndpoints(Wire):
    """Daemons of the node."""

    kubelet_endpoint: Annotated[DaemonEndpoint | None, field_doc("The kubelet.")] = None


class NodeSystemInfo(Wire):
    """Software and hardware of the node."""

    machine_id: Annotated[str, field_doc("Id of the machine.", required=True)] = msgspec.field(
        name="machineID", default=""
    )
    system_uuid: Annotated[str, field_doc("UUID of the machine.", required=True)] = msgspec.field(
        name="systemUUID", default=""
    )
    boot_id: Annotated[str, field_doc("Id of this boot.", required=True)] = msgspec.field(
        name="bootID", default=""
    )
    kernel_version: Annotated[str, field_doc("Kernel.", required=True)] = ""
    os_image: Annotated[str, field_doc("Distribution.", required=True)] = ""
    container_runtime_version: Annotated[str, field_doc("Container runtime.", required=True)] = ""
    kubelet_version: Annotated[str, field_doc("Kubelet.", required=True)] = ""
    kube_proxy_version: Annotated[str, field_doc("Service proxy.", required=True)] = ""
    operating_system: Annotated[str, field_doc("Such as linux.", required=True)] = ""
    architecture: Annotated[str, field_doc("Such as amd64.", required=True)] = ""
    swap: Annotated[FreeForm | None, field_doc("Swap space.")] = None


class ContainerImage(Wire):
    """An image on the node."""

    names: Annotated[list[str], field_doc("Its names.")] = []
    size_bytes: Annotated[int, field_doc("Its size in bytes.")] = 0


class AttachedVolume(Wire):
    """A volume attached to the node."""

    name: Annotated[str, field_doc("Name of the volume.", required=True)] = ""
    device_path: Annotated[str, field_doc("Device it appears as.", required=True)] = ""


class NodeStatus(Wire):
    """The capacity and state of a node, as its kubelet reports it."""

    capacity: Annotated[ResourceList, field_doc("Total resources.")] = {}
    allocatable: Annotated[ResourceList, field_doc("Resources available to pods.")] = {}
    phase: Annotated[str, field_doc("No longer used.")] = ""
    conditions: Annotated[list[Condition], field_doc("Current conditions.", keys=("type",))] = []
    addresses: Annotated[
        list[NodeAddress], field_doc("Addresses of the node.", keys=("type",))
    ] = []
    daemon_endpoints: Annotated[NodeDaemonEndpoints, field_doc("Its daemons.")] = (
        NodeDaemonEndpoints()
    )
    node_info: Annotated[NodeSystemInfo, field_doc("Software and hardware.")] = NodeSystemInfo()
    images: Annotated[list[ContainerImage], field_doc("Images on the node.")] = []
    volumes_in_use: Annotated[list[str], field_doc("Volumes mounted.")] = []
    volumes_attached: Annotated[list[AttachedVolume], field_doc("Volumes attached.")] = []
    config: Annotated[FreeForm | None, field_doc("No longer used.")] = None
    runtime_handlers: Annotated[list[FreeForm], field_doc("Container runtimes.")] = []
    features: Annotated[FreeForm | None, field_doc("Features of its container runtime.")] = None


class Node(Object):
    """A machine that runs pods."""

    spec: Annotated[NodeSpec, field_doc("Desired state.")] = NodeSpec()
    status: Annotated[NodeStatus, field_doc("Observed state.")] = NodeStatus()
