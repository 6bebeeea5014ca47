"""Admission of a bound pod by the kubelet: repeats the scheduler's checks against the node's
present state.
"""

from collections.abc import Iterable, Mapping

from gangline.api.core.pod import Pod
from gangline.api.resource_list import PODS, is_extended_resource, pod_request
from gangline.local.kubelet.records import PodFailureReason


def admit_pod(
    pod: Pod, others: Iterable[Pod], allocatable: Mapping[str, int], labels: Mapping[str, str]
) -> PodFailureReason | None:
    """Return why a pod cannot run here, with Kubernetes' reason and message; None if it can.

    Args:
        pod: the pod that was bound to this node.
        others: the pods that run or will run here.
        allocatable: the node's resources in integer units (thousandths of cpu).
        labels: the node's labels.
    """
    others = list(others)
    wrong = {
        key: value for key, value in pod.spec.node_selector.items() if labels.get(key) != value
    }
    if wrong:
        return PodFailureReason(
            "NodeAffinity", "Predicate NodeAffinity failed: node selector mismatch"
        )
    if len(others) + 1 > allocatable.get(PODS, 0):
        return _out_of(PODS, 1, len(others), allocatable.get(PODS, 0))
    used: dict[str, int] = {}
    for other in others:
        for name, count in pod_request(other.spec).items():
            used[name] = used.get(name, 0) + count
    for name, count in pod_request(pod.spec).items():
        if name not in allocatable and is_extended_resource(name):
            continue  # A cluster-level resource: the scheduler counts it, as in Kubernetes.
        if count > 0 and count + used.get(name, 0) > allocatable.get(name, 0):
            return _out_of(name, count, used.get(name, 0), allocatable.get(name, 0))
    if clash := _host_ports(pod) & {port for other in others for port in _host_ports(other)}:
        listed = ", ".join(f"{protocol} {port}" for port, protocol in sorted(clash))
        return PodFailureReason(
            "NodePorts", f"Predicate NodePorts failed: {listed} in use on the node"
        )
    return None


def _out_of(name: str, requested: int, used: int, capacity: int) -> PodFailureReason:
    return PodFailureReason(
        f"OutOf{name}",
        f"Node didn't have enough resource: {name}, requested: {requested}, "
        f"used: {used}, capacity: {capacity}",
    )


def _host_ports(pod: Pod) -> set[tuple[int, str]]:
    host = pod.spec.host_network
    return {
        (port.host_port or port.container_port, port.protocol or "TCP")
        for container in pod.spec.containers
        for port in container.ports
        if port.host_port or host
    }
