"""From a container's spec to a plan for the runtime."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gangline.api.container import Container, VolumeMount
from gangline.api.pod import Pod
from gangline.api.resourcelist import CPU, MEMORY, amounts
from gangline.api.security import PodSecurityContext, SecurityContext
from gangline.local.kubelet.api_access import ACCESS_PATH
from gangline.local.kubelet.environment import ConfigProblem, expand
from gangline.local.kubelet.images import Image
from gangline.local.kubelet.runtime.contract import (
    ContainerPlan,
    Identity,
    Limits,
    Mount,
)
from gangline.local.kubelet.volumes import PodFolders
from gangline.local.network.contract import Attachment

TERMINATION_LOG = "/dev/termination-log"
_LIMIT_LOG_BYTES = 4096


class NoCommand(Exception):
    """Neither the container nor its image specifies a command."""


@dataclass(frozen=True, slots=True)
class Ingredients:
    """The inputs of a plan besides the spec."""

    image: Image
    env: Mapping[str, str]
    folders: PodFolders
    volumes: Mapping[str, Path]
    attachment: Attachment
    gpus: tuple[int, ...] = ()
    api_access: Path | None = None
    """The folder with the token of the pod's account."""


def build_plan(pod: Pod, container: Container, number: int, made_of: Ingredients) -> ContainerPlan:
    """Return the plan of one run of a container; creates the folders in the plan.

    Raises:
        NoCommand: there is no command.
        ConfigProblem: a mount or user of the spec is not possible.
        OSError: the disk is full, or a folder cannot be written.
    """
    state = made_of.folders.instance(container.name, number)
    state.mkdir(parents=True, exist_ok=True)
    env = made_of.env
    return ContainerPlan(
        pod_uid=pod.metadata.uid,
        namespace=pod.metadata.namespace,
        pod=pod.metadata.name,
        container=container.name,
        instance=number,
        argv=_argv(container, made_of.image, env),
        env=env,
        state_dir=state,
        workdir=expand(container.working_dir, env) or made_of.image.workdir,
        mounts=(
            *_network_files(made_of.attachment),
            _termination_log(container, state),
            *_api_access(container, made_of.api_access),
            *(_mount(pod, each, made_of, env) for each in container.volume_mounts),
        ),
        root=made_of.image.root,
        hostname="" if pod.spec.host_network else made_of.attachment.hostname,
        netns=made_of.attachment.netns_path,
        identity=identity_of(pod, container),
        limits=limits_of(container),
        read_only_root=bool(_context(container).read_only_root_filesystem),
        gpu_devices=bool(made_of.gpus),
        stdin=container.stdin,
        tty=container.tty,
        annotations=pod.metadata.annotations,
    )


def identity_of(pod: Pod, container: Container) -> Identity:
    """The user and groups of a container.

    Raises:
        ConfigProblem: it must not run as root, but would.
    """
    own = _context(container)
    shared = pod.spec.security_context or PodSecurityContext()
    user = own.run_as_user if own.run_as_user is not None else shared.run_as_user
    group = own.run_as_group if own.run_as_group is not None else shared.run_as_group
    non_root = own.run_as_non_root if own.run_as_non_root is not None else shared.run_as_non_root
    if non_root and not user:
        raise ConfigProblem(
            "container has runAsNonRoot and image will run as root: set runAsUser "
            f'(pod: "{pod.metadata.name}_{pod.metadata.namespace}", container: {container.name})'
        )
    groups = [*shared.supplemental_groups]
    if shared.fs_group is not None:
        groups.append(shared.fs_group)
    if user is None and group is None and groups:
        user = 0
    return Identity(user, group, tuple(groups))


def limits_of(container: Container) -> Limits:
    """The resource limits of a container."""
    limits = amounts(container.resources.limits)
    desired = {**limits, **amounts(container.resources.requests)}
    return Limits(
        cpu_request_milli=desired.get(CPU, 0),
        cpu_limit_milli=limits.get(CPU) or None,
        memory_bytes=limits.get(MEMORY) or None,
    )


def termination_message(container: Container, state: Path, log_tail: bytes, code: int) -> str:
    """The content of a run's termination file, or the end of its log if the policy says so."""
    try:
        with open(state / "termination-log", "rb") as file:
            message = file.read(_LIMIT_LOG_BYTES)
    except OSError:
        message = b""
    wants_log = container.termination_message_policy == "FallbackToLogsOnError"
    if not message and code != 0 and wants_log:
        message = log_tail
    return message.decode(errors="replace")


def _argv(container: Container, image: Image, env: Mapping[str, str]) -> tuple[str, ...]:
    command = [expand(each, env) for each in container.command] or list(image.command)
    argv = (*command, *(expand(each, env) for each in container.args))
    if not argv:
        raise NoCommand(
            f'no command specified: set command on container "{container.name}", or give image '
            f'"{container.image}" one in the image map (images are not pulled)'
        )
    return argv


def _context(container: Container) -> SecurityContext:
    return container.security_context or SecurityContext()


def _network_files(attachment: Attachment) -> list[Mount]:
    return [
        Mount(attachment.hosts_path, "/etc/hosts"),
        Mount(attachment.resolv_path, "/etc/resolv.conf"),
    ]


def _api_access(container: Container, folder: Path | None) -> list[Mount]:
    """The mount of the account's token, unless the container mounts something else there."""
    own = any(each.mount_path.rstrip("/") == ACCESS_PATH for each in container.volume_mounts)
    return [] if folder is None or own else [Mount(folder, ACCESS_PATH, read_only=True)]


def _termination_log(container: Container, state: Path) -> Mount:
    file = state / "termination-log"
    file.touch()
    file.chmod(0o666)
    return Mount(file, container.termination_message_path or TERMINATION_LOG)


def _mount(pod: Pod, mount: VolumeMount, made_of: Ingredients, env: Mapping[str, str]) -> Mount:
    source = made_of.volumes.get(mount.name)
    if source is None:
        raise ConfigProblem(f'volumeMount names volume "{mount.name}", which the pod does not have')
    inner = expand(mount.sub_path_expr, env) or mount.sub_path
    if inner:
        source = _inside(source, inner, mount)
    target = os.path.normpath("/" + mount.mount_path.lstrip("/"))
    return Mount(source, target, mount.read_only or _is_read_only(pod, mount.name))


def _inside(volume: Path, path: str, mount: VolumeMount) -> Path:
    """The part of a volume that is mounted; a missing folder is created."""
    if path.startswith("/") or ".." in path.split("/"):
        raise ConfigProblem(f'subPath "{path}" of volume "{mount.name}" leads out of it')
    place = volume / path
    if not place.exists():
        place.mkdir(parents=True)
    resolved = place.resolve()
    if not resolved.is_relative_to(volume.resolve()):
        raise ConfigProblem(f'subPath "{path}" of volume "{mount.name}" leads out of it')
    return resolved


def _is_read_only(pod: Pod, name: str) -> bool:
    """True if a volume must not be written: it consists of API objects, or is claimed read-only."""
    volume = next(each for each in pod.spec.volumes if each.name == name)
    claim = volume.persistent_volume_claim
    made = volume.config_map or volume.secret or volume.projected or volume.downward_api
    return bool(made or (claim and claim.read_only))
