"""Admission of a bound pod by the kubelet, and the fields of its spec that have no effect here.

Admission repeats the scheduler's checks against the node's present state.
"""

from collections.abc import Iterable, Mapping

from gangline.api.core.container import Container
from gangline.api.core.host_ports import host_ports
from gangline.api.core.pod import Pod
from gangline.api.core.security import PodSecurityContext, SecurityContext
from gangline.api.resource_list import PODS, is_extended_resource, pod_request
from gangline.local.kubelet.records import PodFailureReason

NO_CONTEXT = PodSecurityContext()
SAFE_SYSCTLS = {
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_wmem",
}


def unsupported_fields(pod: Pod, *, as_root: bool, mounts_files: bool = True) -> list[str]:
    """The fields of a pod's spec that have no effect here, in order of their names."""
    spec = pod.spec
    used = {
        "hostPID": spec.host_pid,
        "hostIPC": spec.host_ipc,
        "shareProcessNamespace": bool(spec.share_process_namespace),
        "ephemeralContainers": bool(spec.ephemeral_containers),
        "runtimeClassName": bool(spec.runtime_class_name),
        "setHostnameAsFQDN (needs namespaces)": bool(
            spec.set_hostname_as_fqdn and not mounts_files
        ),
    }
    shared = spec.security_context or NO_CONTEXT
    used["securityContext.sysctls (needs root and namespaces)"] = bool(
        shared.sysctls and not (as_root and mounts_files)
    )
    if not as_root:
        used["securityContext.fsGroup (needs root)"] = shared.fs_group is not None
        used["securityContext.runAsUser (needs root)"] = bool(shared.run_as_user)
    names = {name for name, given in used.items() if given}
    for container in [*spec.init_containers, *spec.containers]:
        names |= _unsupported_in_container(container, as_root, mounts_files)
    return sorted(names)


def _unsupported_in_container(container: Container, as_root: bool, mounts_files: bool) -> set[str]:
    own = container.security_context or SecurityContext()
    used = {
        "volumeDevices": bool(container.volume_devices),
        "securityContext.readOnlyRootFilesystem (needs namespaces)": bool(
            own.read_only_root_filesystem and not mounts_files
        ),
    }
    if not as_root:
        used["securityContext.capabilities (needs root)"] = own.capabilities is not None
        used["securityContext.runAsUser (needs root)"] = bool(own.run_as_user)
        used["resources.limits.cpu (needs root)"] = "cpu" in container.resources.limits
    return {f"containers[{container.name}].{name}" for name, given in used.items() if given}


def admit_pod(
    pod: Pod, others: Iterable[Pod], allocatable: Mapping[str, int], labels: Mapping[str, str]
) -> PodFailureReason | None:
    """Return why a pod cannot run here beside others, with Kubernetes' reason and message; None if
    it can. ``allocatable`` has integer units (thousandths of cpu).
    """
    others = list(others)
    if forbidden := _forbidden_sysctls(pod):
        return PodFailureReason(
            "SysctlForbidden", f'forbidden sysctl: "{forbidden[0]}" not allowlisted'
        )
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
    taken = [port for other in others for port in host_ports(other.spec)]
    if clash := {port for port in host_ports(pod.spec) if any(map(port.conflicts_with, taken))}:
        listed = ", ".join(f"{port.protocol} {port.port}" for port in sorted(clash))
        return PodFailureReason(
            "NodePorts", f"Predicate NodePorts failed: {listed} in use on the node"
        )
    return None


def _forbidden_sysctls(pod: Pod) -> list[str]:
    """The kernel parameters that would reach beyond the pod, or are not on Kubernetes' list."""
    spec = pod.spec
    names = [one.name.replace("/", ".") for one in (spec.security_context or NO_CONTEXT).sysctls]
    return [
        name
        for name in names
        if name not in SAFE_SYSCTLS or (spec.host_network and name.startswith("net."))
    ]


def _out_of(name: str, requested: int, used: int, capacity: int) -> PodFailureReason:
    return PodFailureReason(
        f"OutOf{name}",
        f"Node didn't have enough resource: {name}, requested: {requested}, "
        f"used: {used}, capacity: {capacity}",
    )
