"""The controls of the level *baseline*, which prevents known privilege escalations."""

from typing import Any

from gangline.api.validation.security_standards.pods import (
    PodUnderCheck,
    Violation,
    count,
    quote,
    setters,
)
from gangline.api.validation.security_standards.policy import LevelVersion

_APPARMOR = "container.apparmor.security.beta.kubernetes.io/"
_SECCOMP_POD = "seccomp.security.alpha.kubernetes.io/pod"
_SECCOMP = "container.seccomp.security.alpha.kubernetes.io/"
_SECCOMP_VALUES = ("runtime/default", "docker/default")
SECCOMP_TYPES = ("RuntimeDefault", "Localhost")
_SECCOMP_FIELDS_FROM = 19
_HOST_FIELDS = ("hostNetwork", "hostPID", "hostIPC")
_SELINUX_TYPES = ("", "container_t", "container_init_t", "container_kvm_t")
_SELINUX_ENGINE = (31, "container_engine_t")
DEFAULT_CAPABILITIES = frozenset(
    (
        *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD"),
        *("NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
    )
)
_SYSCTLS = {
    "kernel.shm_rmid_forced": 0,
    "net.ipv4.ip_local_port_range": 0,
    "net.ipv4.ip_unprivileged_port_start": 0,
    "net.ipv4.ping_group_range": 0,
    "net.ipv4.tcp_syncookies": 0,
    "net.ipv4.ip_local_reserved_ports": 27,
    "net.ipv4.tcp_fin_timeout": 29,
    "net.ipv4.tcp_keepalive_intvl": 29,
    "net.ipv4.tcp_keepalive_probes": 29,
    "net.ipv4.tcp_keepalive_time": 29,
    "net.ipv4.tcp_rmem": 32,
    "net.ipv4.tcp_wmem": 32,
}
"""Safe kernel parameters, with the minor version from which on each is allowed."""


def app_armor_profile(pod: PodUnderCheck, version: LevelVersion) -> Violation | None:
    allowed = ("", *SECCOMP_TYPES)
    bad_pod = _profile_type(pod.context, "appArmorProfile") not in allowed
    bad = [n for n, _, c in pod.containers() if _profile_type(c, "appArmorProfile") not in allowed]
    found = []
    if bad_pod or bad:
        types = {_profile_type(pod.context, "appArmorProfile")} if bad_pod else set()
        types |= {_profile_type(c, "appArmorProfile") for n, _, c in pod.containers() if n in bad}
        found.append(
            f"{setters(bad_pod, bad)} must not set securityContext.appArmorProfile.type to "
            f"{quote(sorted(types))}"
        )
    annotations = sorted(
        f'{key}="{value}"'
        for key, value in pod.annotations.items()
        if key.startswith(_APPARMOR)
        and value not in ("", "runtime/default")
        and not value.startswith("localhost/")
    )
    if not found and not annotations:
        return None
    profiles = "profile" if len(found) + len(annotations) == 1 else "profiles"
    return Violation(f"forbidden AppArmor {profiles}", ", ".join([*found, *annotations]))


def _profile_type(context: Any, field: str) -> str:
    profile = context.get(field)
    return "" if profile is None else str(profile.get("type", ""))


def capabilities(pod: PodUnderCheck, version: LevelVersion) -> Violation | None:
    added = {
        name: set((context.get("capabilities") or {}).get("add") or ()) - DEFAULT_CAPABILITIES
        for name, _, context in pod.containers()
    }
    bad = [name for name, forbidden in added.items() if forbidden]
    if not bad:
        return None
    forbidden = quote(sorted(set().union(*added.values())))
    detail = (
        f"{count('container', bad)} must not include {forbidden} in "
        "securityContext.capabilities.add"
    )
    return Violation("non-default capabilities", detail)


def host_namespaces(pod: PodUnderCheck, version: LevelVersion) -> Violation | None:
    bad = [f"{field}=true" for field in _HOST_FIELDS if pod.spec.get(field)]
    return Violation("host namespaces", ", ".join(bad)) if bad else None


def host_path_volumes(pod: PodUnderCheck, version: LevelVersion) -> Violation | None:
    bad = [str(each.get("name", "")) for each in pod.volumes() if each.get("hostPath") is not None]
    return Violation("hostPath volumes", count("volume", bad)) if bad else None


def host_ports(pod: PodUnderCheck, version: LevelVersion) -> Violation | None:
    ports = {
        name: [port["hostPort"] for port in container.get("ports") or () if port.get("hostPort")]
        for name, container, _ in pod.containers()
    }
    bad = [name for name, found in ports.items() if found]
    if not bad:
        return None
    numbers = sorted({str(port) for found in ports.values() for port in found})
    use, noun = ("uses", "use")[len(bad) > 1], ("hostPort", "hostPorts")[len(numbers) > 1]
    return Violation("hostPort", f"{count('container', bad)} {use} {noun} {', '.join(numbers)}")


def privileged(pod: PodUnderCheck, version: LevelVersion) -> Violation | None:
    bad = [name for name, _, context in pod.containers() if context.get("privileged")]
    detail = f"{count('container', bad)} must not set securityContext.privileged=true"
    return Violation("privileged", detail) if bad else None


def proc_mount(pod: PodUnderCheck, version: LevelVersion) -> Violation | None:
    mounts = {n: c.get("procMount") for n, _, c in pod.containers()}
    bad = {name: mount for name, mount in mounts.items() if mount not in (None, "Default")}
    if not bad:
        return None
    types = quote(sorted({str(mount) for mount in bad.values()}))
    detail = f"{count('container', list(bad))} must not set securityContext.procMount to {types}"
    return Violation("procMount", detail)


def se_linux_options(pod: PodUnderCheck, version: LevelVersion) -> Violation | None:
    minor, engine = _SELINUX_ENGINE
    allowed = (*_SELINUX_TYPES, *([engine] if version.is_at_least(minor) else []))
    types: set[str] = set()
    fields: set[str] = set()

    def is_bad(context: Any) -> bool:
        options = context.get("seLinuxOptions") or {}
        kind = options.get("type") or ""
        types.update({kind} - set(allowed))
        given = {field for field in ("user", "role") if options.get(field)}
        fields.update(given)
        return kind not in allowed or bool(given)

    bad_pod = is_bad(pod.context)
    bad = [name for name, _, context in pod.containers() if is_bad(context)]
    if not bad_pod and not bad:
        return None
    data = [count("type", sorted(types))] if types else []
    data += [f"{field} may not be set" for field in ("user", "role") if field in fields]
    who = setters(bad_pod, bad)
    detail = f"{who} set forbidden securityContext.seLinuxOptions: {'; '.join(data)}"
    return Violation("seLinuxOptions", detail)


def seccomp_profile(pod: PodUnderCheck, version: LevelVersion) -> Violation | None:
    if not version.is_at_least(_SECCOMP_FIELDS_FROM):
        return _seccomp_annotations(pod)
    allowed = SECCOMP_TYPES
    bad, types, bad_pod = [], set(), False
    if pod.context.get("seccompProfile") is not None:
        kind = _profile_type(pod.context, "seccompProfile")
        bad_pod = kind not in allowed
        types |= {kind} - set(allowed)
    for name, _, context in pod.containers():
        kind = _profile_type(context, "seccompProfile")
        if context.get("seccompProfile") is not None and kind not in allowed:
            bad.append(name)
            types.add(kind)
    if not bad_pod and not bad:
        return None
    detail = (
        f"{setters(bad_pod, bad)} must not set securityContext.seccompProfile.type to "
        f"{quote(sorted(types))}"
    )
    return Violation("seccompProfile", detail)


def _seccomp_annotations(pod: PodUnderCheck) -> Violation | None:
    keys = [_SECCOMP_POD, *(f"{_SECCOMP}{name}" for name, _, _ in pod.containers())]
    bad = sorted(
        f'{key}="{value}"'
        for key in keys
        if (value := pod.annotations.get(key)) is not None
        and value not in _SECCOMP_VALUES
        and not value.startswith("localhost/")
    )
    noun = "annotation" if len(bad) == 1 else "annotations"
    return Violation("seccompProfile", f"forbidden {noun} {', '.join(bad)}") if bad else None


def sysctls(pod: PodUnderCheck, version: LevelVersion) -> Violation | None:
    bad = [
        name
        for each in pod.context.get("sysctls") or ()
        if (name := str(each.get("name", ""))) not in _SYSCTLS
        or not version.is_at_least(_SYSCTLS[name])
    ]
    return Violation("forbidden sysctls", ", ".join(bad)) if bad else None


def windows_host_process(pod: PodUnderCheck, version: LevelVersion) -> Violation | None:
    def is_bad(context: Any) -> bool:
        return bool((context.get("windowsOptions") or {}).get("hostProcess"))

    bad_pod = is_bad(pod.context)
    bad = [name for name, _, context in pod.containers() if is_bad(context)]
    if not bad_pod and not bad:
        return None
    detail = f"{setters(bad_pod, bad)} must not set securityContext.windowsOptions.hostProcess=true"
    return Violation("hostProcess", detail)
