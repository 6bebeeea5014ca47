"""Address and state of the TensorBoard of a job."""

from collections.abc import Sequence
from dataclasses import dataclass

from gangline.api.core.node import Node
from gangline.api.core.pod import Pod
from gangline.api.core.pod_status import ContainerStatus
from gangline.api.core.service import Service
from gangline.api.meta.conditions import find_condition, is_condition_true
from gangline.api.resources import NODES, PODS, SERVICES
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import ApiError, Forbidden, NotFound


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


@dataclass(frozen=True, slots=True)
class TensorBoardState:
    """Whether a TensorBoard answers, or why it does not."""

    ready: bool
    problem: str = ""
    """Why it is not ready; empty if it is."""
    crashed: bool = False
    """True if its program ended: waiting does not help."""


_LAST_LINES = 3


async def read_tensorboard_state(client: ApiClient, namespace: str, job: str) -> TensorBoardState:
    """Return the state of a job's TensorBoard, from its pods.

    Raises:
        Forbidden: the user may not list pods.
    """
    selected = f"release={job},role=tensorboard"
    pods = (await client.list(PODS, namespace, labels=selected)).items
    states = [await _pod_state(client, pod) for pod in pods]
    best = sorted(states, key=lambda state: (not state.ready, state.crashed))
    return best[0] if best else TensorBoardState(False, "it has no pod yet")


async def _pod_state(client: ApiClient, pod: Pod) -> TensorBoardState:
    conditions = pod.status.conditions
    if is_condition_true(conditions, "Ready") and pod.metadata.deletion_timestamp is None:
        return TensorBoardState(True)
    scheduled = find_condition(conditions, "PodScheduled")
    if scheduled is not None and scheduled.status == "False":
        return TensorBoardState(False, scheduled.message or scheduled.reason)
    for status in pod.status.container_statuses:
        end = status.state.terminated or status.last_state.terminated
        if end is not None:
            last = await _last_lines(client, pod, status)
            reason = end.message.strip() or last or end.reason
            return TensorBoardState(
                False, f"it ended with exit code {end.exit_code}: {reason}", crashed=True
            )
        if status.state.waiting is not None:
            waiting = status.state.waiting
            return TensorBoardState(False, f"{waiting.reason} {waiting.message}".strip())
    return TensorBoardState(False, f"its pod is {pod.status.phase or 'Pending'}, but not ready")


async def _last_lines(client: ApiClient, pod: Pod, status: ContainerStatus) -> str:
    lines = client.logs(
        pod.metadata.name,
        pod.metadata.namespace,
        container=status.name,
        tail=_LAST_LINES,
        previous=status.state.terminated is None,
    )
    try:
        return " ".join([line.decode(errors="replace").strip() async for line in lines])
    except ApiError:
        return ""
