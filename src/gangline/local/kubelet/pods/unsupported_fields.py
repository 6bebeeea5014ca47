"""Fields of a pod that this kubelet does not support, for a warning event."""

from gangline.api.core.container import Container
from gangline.api.core.pod import Pod
from gangline.api.core.security import PodSecurityContext, SecurityContext


def unsupported_fields(pod: Pod, *, as_root: bool) -> list[str]:
    """The fields of a pod's spec that have no effect here, in order of their names."""
    spec = pod.spec
    found = {
        "hostPID": spec.host_pid,
        "hostIPC": spec.host_ipc,
        "shareProcessNamespace": bool(spec.share_process_namespace),
        "ephemeralContainers": bool(spec.ephemeral_containers),
        "runtimeClassName": bool(spec.runtime_class_name),
        "dnsConfig": spec.dns_config is not None,
    }
    shared = spec.security_context or PodSecurityContext()
    found["securityContext.sysctls"] = bool(shared.sysctls)
    if not as_root:
        found["securityContext.fsGroup (needs root)"] = shared.fs_group is not None
        found["securityContext.runAsUser (needs root)"] = bool(shared.run_as_user)
    names = {name for name, given in found.items() if given}
    for container in [*spec.init_containers, *spec.containers]:
        names |= _unsupported_in_container(container, as_root)
    return sorted(names)


def _unsupported_in_container(container: Container, as_root: bool) -> set[str]:
    own = container.security_context or SecurityContext()
    probes = (container.liveness_probe, container.readiness_probe, container.startup_probe)
    found = {
        "volumeDevices": bool(container.volume_devices),
        "grpc probe": any(probe is not None and probe.grpc is not None for probe in probes),
    }
    if not as_root:
        found["securityContext.capabilities (needs root)"] = own.capabilities is not None
        found["securityContext.runAsUser (needs root)"] = bool(own.run_as_user)
        found["resources.limits.cpu (needs root)"] = "cpu" in container.resources.limits
    return {f"containers[{container.name}].{name}" for name, given in found.items() if given}
