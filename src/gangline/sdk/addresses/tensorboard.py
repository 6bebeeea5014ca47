"""Address of the TensorBoard of a job."""

from collections.abc import Sequence

from gangline.api.core.node import Node
from gangline.api.core.service import Service
from gangline.api.resources import NODES, SERVICES
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import Forbidden, NotFound


async def tensorboard_address(client: ApiClient, namespace: str, job: str) -> str:
    """Return the address of a job's TensorBoard; empty if it has none."""
    try:
        service = await client.get(SERVICES, f"{job}-tensorboard", namespace)
    except (NotFound, Forbidden):
        return ""
    if service.spec.type != "NodePort":
        return service_address(service, [])
    try:
        nodes = (await client.list(NODES)).items
    except Forbidden:
        nodes = []
    return service_address(service, nodes)


def service_address(service: Service, nodes: Sequence[Node]) -> str:
    """Return the address with the widest reach: that of a node if the service has a node port.

    Otherwise it is the cluster IP; empty for a headless service.
    """
    if not service.spec.ports:
        return ""
    port = service.spec.ports[0]
    addresses = [
        address.address
        for node in nodes
        for address in node.status.addresses
        if address.type == "InternalIP"
    ]
    if port.node_port and addresses:
        return f"http://{addresses[0]}:{port.node_port}"
    host = service.spec.cluster_ip
    return f"http://{host}:{port.port}" if host and host != "None" else ""
