"""From a container's spec to a plan for the runtime, with its capabilities and GPUs.

GPUs are assigned by index, for the lifetime of the pod.
"""

import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gangline.api.core.container import Container, VolumeMount
from gangline.api.core.pod import Pod
from gangline.api.core.security import Capabilities, PodSecurityContext, SecurityContext
from gangline.api.quantity import parse_whole
from gangline.api.resource_list import CPU, GPU, MEMORY, parse_resources
from gangline.local.kubelet.configuration import ContainerConfigError, expand_references
from gangline.local.kubelet.containers.images import ResolvedImage
from gangline.local.kubelet.files.beneath import LEADS_OUT, make_beneath, opened_folder, real_path
from gangline.local.kubelet.files.private import read_end_of_file
from gangline.local.kubelet.runtime.interface import (
    ContainerIdentity,
    ContainerLimits,
    ContainerMount,
    ContainerPlan,
)
from gangline.local.kubelet.volumes import PodFolders
from gangline.local.network.addresses import NetworkAttachment

NAMES = (
    "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID",
    "SETPCAP", "LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW",
    "IPC_LOCK", "IPC_OWNER", "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT",
    "SYS_ADMIN", "SYS_BOOT", "SYS_NICE", "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD",
    "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP", "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG",
    "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF", "CHECKPOINT_RESTORE",
)  # fmt: skip
"""In the order of their numbers, from 0 (``linux/capability.h``)."""
DEFAULT = frozenset(
    {
        "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD",
        "NET_BIND_SERVICE", "NET_RAW", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
    }
)  # fmt: skip
"""The default set of containerd."""
EVERY = "ALL"


def bounding_set(add: Iterable[str], drop: Iterable[str]) -> frozenset[str]:
    """Return the capabilities that a container may have, as containerd does.

    ``ALL`` is applied before single names. Unknown names have no effect.
    """
    added, dropped = set(_plain(add)), set(_plain(drop))
    allowed = set() if EVERY in dropped else set(DEFAULT)
    if EVERY in added:
        allowed = set(NAMES)
    return frozenset((allowed | (added & set(NAMES))) - dropped)


def _plain(names: Iterable[str]) -> list[str]:
    return [name.upper().removeprefix("CAP_") for name in names]


def capability_numbers(names: Iterable[str]) -> tuple[int, ...]:
    return tuple(sorted(NAMES.index(name) for name in names))


@dataclass(slots=True)
class DeviceManager:
    """The GPUs of one node and the containers that they are assigned to."""

    indices: Sequence[int]
    _assigned: dict[tuple[str, str], tuple[int, ...]] = field(default_factory=dict)

    def assign(self, pod_uid: str, container: Container) -> tuple[int, ...] | None:
        """The GPUs of a container, the same at every call; None if not enough are free."""
        held = self._assigned.get((pod_uid, container.name))
        if held is not None:
            return held
        if not self.indices:
            return ()  # The node has no devices to assign: it only counts the resource, if at all.
        desired = requested_gpus(container)
        taken = {index for indices in self._assigned.values() for index in indices}
        free = [index for index in self.indices if index not in taken]
        if desired > len(free):
            return None
        self._assigned[pod_uid, container.name] = tuple(free[:desired])
        return self._assigned[pod_uid, container.name]

    def release(self, pod_uid: str) -> None:
        for key in [key for key in self._assigned if key[0] == pod_uid]:
            del self._assigned[key]


def requested_gpus(container: Container) -> int:
    resources = container.resources
    return parse_whole(resources.limits.get(GPU, resources.requests.get(GPU, 0)))


def gpu_variables(assigned: Sequence[int], node_has_gpus: bool) -> dict[str, str]:
    """The environment variables that make only the assigned GPUs visible to a process."""
    if not node_has_gpus:
        return {}
    listed = ",".join(map(str, assigned))
    return {"CUDA_VISIBLE_DEVICES": listed, "NVIDIA_VISIBLE_DEVICES": listed or "void"}


TERMINATION_LOG = "/dev/termination-log"
_MESSAGE_BYTES = 4096
_MESSAGE_LOG_BYTES, _MESSAGE_LOG_LINES = 2048, 80


class NoCommandError(Exception):
    """Neither the container nor its image specifies a command."""


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """The inputs of a plan besides the spec."""

    image: ResolvedImage
    env: Mapping[str, str]
    folders: PodFolders
    volumes: Mapping[str, Path]
    attachment: NetworkAttachment
    gpus: tuple[int, ...] = ()


def build_container_plan(
    pod: Pod, container: Container, number: int, inputs: PlanInputs
) -> ContainerPlan:
    """Return the plan of one run of a container; creates the folders in the plan. Raises
    NoCommandError, ContainerConfigError: a mount or user is not possible; OSError: the disk is
    full.
    """
    state = inputs.folders.instance(container.name, number)
    state.mkdir(parents=True, exist_ok=True)
    env = inputs.env
    return ContainerPlan(
        pod_uid=pod.metadata.uid,
        namespace=pod.metadata.namespace,
        pod=pod.metadata.name,
        container=container.name,
        instance=number,
        argv=_command_line(container, inputs.image, env),
        env=env,
        state_dir=state,
        workdir=expand_references(container.working_dir, env) or inputs.image.workdir,
        mounts=(
            ContainerMount(inputs.attachment.hosts_path, "/etc/hosts"),
            ContainerMount(inputs.attachment.resolv_path, "/etc/resolv.conf"),
            _termination_log(container, state),
            *(_mount(pod, volume_mount, inputs, env) for volume_mount in container.volume_mounts),
        ),
        root=inputs.image.root,
        hostname="" if pod.spec.host_network else inputs.attachment.hostname,
        netns=inputs.attachment.netns_path,
        identity=container_identity(pod, container, inputs.image),
        limits=container_limits(container),
        sysctls=_sysctls(pod),
        read_only_root=bool(_context(container).read_only_root_filesystem),
        gpu_devices=bool(inputs.gpus),
        stdin=container.stdin,
        tty=container.tty,
        annotations=pod.metadata.annotations,
        warm=inputs.image.warm,
    )


def container_identity(pod: Pod, container: Container, image: ResolvedImage) -> ContainerIdentity:
    """The user and groups of a container. Raises ContainerConfigError: it must not run as root, but
    would.
    """
    own = _context(container)
    shared = pod.spec.security_context or PodSecurityContext()
    users = (own.run_as_user, shared.run_as_user, image.user)
    user = next((user for user in users if user is not None), None)
    of_image = image.group if user == image.user else None
    groups = (own.run_as_group, shared.run_as_group, of_image)
    group = next((group for group in groups if group is not None), None)
    non_root = own.run_as_non_root if own.run_as_non_root is not None else shared.run_as_non_root
    if non_root and not user:
        raise ContainerConfigError(
            "container has runAsNonRoot and image will run as root: set runAsUser, or user for "
            f'image "{container.image}" in the image map '
            f'(pod: "{pod.metadata.name}_{pod.metadata.namespace}", container: {container.name})'
        )
    further = [*shared.supplemental_groups]
    if shared.fs_group is not None:
        further.append(shared.fs_group)
    if user is None and group is None and further:
        user = 0
    return ContainerIdentity(
        user,
        group,
        tuple(further),
        _capabilities(own, is_root=not user),
        no_new_privileges=own.allow_privilege_escalation is False,
    )


def _capabilities(own: SecurityContext, *, is_root: bool) -> tuple[int, ...] | None:
    """The bounding set of a container. One that runs as root keeps that of the kubelet, unless it
    says ``privileged: false``.
    """
    if own.privileged or (is_root and own.capabilities is None and own.privileged is None):
        return None
    given = own.capabilities or Capabilities()
    return capability_numbers(bounding_set(given.add, given.drop))


def container_limits(container: Container) -> ContainerLimits:
    limits = parse_resources(container.resources.limits)
    desired = {**limits, **parse_resources(container.resources.requests)}
    return ContainerLimits(
        cpu_request_milli=desired.get(CPU, 0),
        cpu_limit_milli=limits.get(CPU) or None,
        memory_bytes=limits.get(MEMORY) or None,
    )


def termination_message(container: Container, state: Path, log_tail: bytes, code: int) -> str:
    """The end of a run's termination file, or the end of its log if the policy says so."""
    try:
        message = read_end_of_file(state / "termination-log", _MESSAGE_BYTES)
    except FileNotFoundError:
        message = b""
    except OSError as error:
        return f"Error on reading termination log: {error.strerror}"
    wants_log = container.termination_message_policy == "FallbackToLogsOnError"
    if not message and code != 0 and wants_log:
        lines = log_tail[-_MESSAGE_LOG_BYTES:].splitlines(keepends=True)
        message = b"".join(lines[-_MESSAGE_LOG_LINES:])
    return message.decode(errors="replace")


def _command_line(
    container: Container, image: ResolvedImage, env: Mapping[str, str]
) -> tuple[str, ...]:
    command = [expand_references(part, env) for part in container.command] or list(image.command)
    argv = (*command, *(expand_references(arg, env) for arg in container.args))
    if not argv:
        raise NoCommandError(
            f'no command specified: set command on container "{container.name}", or give image '
            f'"{container.image}" one in the image map (images are not pulled)'
        )
    return argv


def _sysctls(pod: Pod) -> tuple[tuple[str, str], ...]:
    context = pod.spec.security_context
    if context is None or os.geteuid() != 0:
        return ()
    return tuple((sysctl.name.replace(".", "/"), sysctl.value) for sysctl in context.sysctls)


def _context(container: Container) -> SecurityContext:
    return container.security_context or SecurityContext()


def _termination_log(container: Container, state: Path) -> ContainerMount:
    """The file for the termination message. Containers of any user may write it."""
    file = state / "termination-log"
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(file, flags, 0o600)
    os.fchmod(descriptor, 0o666)
    os.close(descriptor)
    return ContainerMount(file, container.termination_message_path or TERMINATION_LOG)


def _mount(
    pod: Pod, mount: VolumeMount, inputs: PlanInputs, env: Mapping[str, str]
) -> ContainerMount:
    source = inputs.volumes.get(mount.name)
    if source is None:
        raise ContainerConfigError(
            f'volumeMount names volume "{mount.name}", which the pod does not have'
        )
    target = os.path.normpath("/" + mount.mount_path.lstrip("/"))
    read_only = mount.read_only or _is_read_only(pod, mount.name)
    inner = expand_references(mount.sub_path_expr, env) or mount.sub_path
    if not inner:
        return ContainerMount(source, target, read_only)
    return ContainerMount(_part(source, inner, mount), target, read_only, source, inner)


def _part(volume: Path, path: str, mount: VolumeMount) -> Path:
    """The part of a volume that is mounted. A missing folder is created, as open as the volume."""
    try:
        with opened_folder(volume) as folder:
            mode = stat.S_IMODE(os.fstat(folder).st_mode)
            part = make_beneath(folder, path, mode)
            try:
                return Path(real_path(part))
            finally:
                os.close(part)
    except OSError as error:
        cause = "it leads out of the volume" if error.errno in LEADS_OUT else error.strerror
        raise ContainerConfigError(
            f'failed to prepare subPath "{path}" of volumeMount "{mount.name}": {cause}'
        ) from error


def _is_read_only(pod: Pod, name: str) -> bool:
    """True if a volume must not be written: it consists of API objects, or is claimed read-only."""
    volume = next(volume for volume in pod.spec.volumes if volume.name == name)
    claim = volume.persistent_volume_claim
    made = volume.config_map or volume.secret or volume.projected or volume.downward_api
    return bool(made or (claim and claim.read_only))
