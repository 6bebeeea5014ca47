"""Targets of port forwarding: a job, a service, a pod. Address and state of a job's TensorBoard."""

from collections.abc import Sequence
from dataclasses import dataclass

from gangline.api.core.node import Node
from gangline.api.core.pod import Pod
from gangline.api.core.service import Service
from gangline.api.meta.conditions import find_condition, is_condition_true
from gangline.api.resources import NODES, PODS, SERVICES
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import Forbidden, NotFound
from gangline.sdk.client import JobClient, JobError
from gangline.sdk.logs import read_tail


@dataclass(frozen=True, slots=True)
class PortTarget:
    """A target as the user writes it."""

    namespace: str
    resource: str
    """``JOB``, ``svc/SERVICE`` or ``pod/POD``."""
    kind: str = ""
    instance: str = ""


async def resolve_port_target(client: ApiClient, place: PortTarget, port: int) -> tuple[str, int]:
    """Return the pod and its port.

    Raises:
        JobError: there is no such pod now, or the job and the pod have ended.
        NotFound: there is no such service or pod.
    """
    prefix, slash, name = place.resource.partition("/")
    if slash and prefix in {"svc", "service", "services"}:
        return await _service_pod(client, place.namespace, name, port)
    if slash and prefix in {"pod", "pods", "po"}:
        return (await client.get(PODS, name, place.namespace)).metadata.name, port
    job = await JobClient(client, place.kind).get(place.resource, place.namespace)
    for replica in job.replicas:
        named = place.instance in {replica.name, replica.short_name}
        if named or (not place.instance and replica.chief):
            if job.state.finished and replica.status != "Running":
                raise JobError(
                    f"job {job.name!r} has {str(job.state).lower()}: {replica.short_name} has "
                    f"ended ({replica.status}), and nothing listens on its ports"
                )
            return replica.name, port
    if job.state.finished and not job.replicas:
        raise JobError(f"job {job.name!r} has {str(job.state).lower()}, and its pods are deleted")
    raise JobError(f"job {job.name!r} has no replica {place.instance or 'yet'}")


async def _service_pod(client: ApiClient, namespace: str, name: str, port: int) -> tuple[str, int]:
    service = await client.get(SERVICES, name, namespace)
    labels = ",".join(f"{key}={value}" for key, value in service.spec.selector.items())
    pods = (await client.list(PODS, namespace, labels=labels)).items if labels else []
    running = sorted((pod for pod in pods if _serves(pod)), key=lambda pod: pod.metadata.name)
    if not running:
        raise JobError(f"no pod behind service {name!r} is running")
    targets = {entry.port: entry.target_port for entry in service.spec.ports}
    target = targets.get(port)
    return running[0].metadata.name, target if isinstance(target, int) and target else port


def _serves(pod: Pod) -> bool:
    return pod.status.phase == "Running" and pod.metadata.deletion_timestamp is None


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
            last = await read_tail(
                client, pod, status.name, _LAST_LINES, previous=status.state.terminated is None
            )
            reason = end.message.strip() or " ".join(map(str.strip, last)) or end.reason
            return TensorBoardState(
                False, f"it ended with exit code {end.exit_code}: {reason}", crashed=True
            )
        if status.state.waiting is not None:
            waiting = status.state.waiting
            return TensorBoardState(False, f"{waiting.reason} {waiting.message}".strip())
    return TensorBoardState(False, f"its pod is {pod.status.phase or 'Pending'}, but not ready")
