"""The folders of a pod's volumes: created before its containers start, removed after its end."""

import contextlib
import shutil
import stat
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gangline.api.core.pod import Pod
from gangline.api.core.volumes import HostPathVolumeSource, Volume
from gangline.local.kubelet.configuration import ContainerConfigError, ValueSources
from gangline.local.kubelet.files.private import give_to_group, make_private_folder
from gangline.local.kubelet.volumes.projection import build_payload, volume_group, write_payload

SHARED_MEMORY = Path("/dev/shm")


class FindClaim(Protocol):
    """Returns the folder of a claim; raises `ContainerConfigError` if there is none."""

    def __call__(self, namespace: str, name: str, owner_uid: str = "") -> Awaitable[Path]: ...


_KINDS: dict[str, Callable[[int], bool]] = {
    "Directory": stat.S_ISDIR,
    "File": stat.S_ISREG,
    "Socket": stat.S_ISSOCK,
    "CharDevice": stat.S_ISCHR,
    "BlockDevice": stat.S_ISBLK,
}


@dataclass(frozen=True, slots=True)
class PodFolders:
    top: Path
    memory: Path
    """For volumes in memory; not below ``top``, but named after the pod."""

    logs: Path

    def volume(self, name: str) -> Path:
        return self.top / "volumes" / name

    def instance(self, container: str, number: int) -> Path:
        return self.top / "containers" / container / str(number)

    def log(self, container: str, number: int) -> Path:
        return self.logs / container / f"{number}.log"


def pod_folders(data: Path, cluster: str, pod: Pod) -> PodFolders:
    meta = pod.metadata
    return PodFolders(
        top=data / "pods" / meta.uid,
        memory=SHARED_MEMORY / f"gangline-{cluster}-{meta.uid}",
        logs=data / "logs" / f"{meta.namespace}_{meta.name}_{meta.uid}",
    )


async def make_volumes(
    pod: Pod, folders: PodFolders, sources: ValueSources, find_claim: FindClaim
) -> dict[str, Path]:
    """Create the folders of a pod's volumes; returns them by name.

    Invariant: the pod's folders are closed to other users of the machine. Containers with a user of
    their own reach the volumes by mounts, which do not pass through the parent folders.

    Raises ContainerConfigError: a volume cannot be created (yet); OSError: the disk is full.
    """
    made = {}
    make_private_folder(folders.top)
    for volume in pod.spec.volumes:
        try:
            made[volume.name] = await _make(pod, volume, folders, sources, find_claim)
        except ContainerConfigError as error:
            raise ContainerConfigError(f'volume "{volume.name}": {error}') from error
    return made


def refresh_volumes(pod: Pod, folders: PodFolders, sources: ValueSources) -> None:
    """Update volumes of API objects. Raises ContainerConfigError: an object does not exist any
    more, and its volume stays unchanged; OSError: the disk is full.
    """
    for volume in pod.spec.volumes:
        files = build_payload(pod, volume, sources)
        if files is not None:
            write_payload(folders.volume(volume.name), files, volume_group(pod))


def remove_files(folders: PodFolders, *, logs: bool) -> None:
    for folder in (folders.top, folders.memory, *([folders.logs] if logs else [])):
        shutil.rmtree(folder, ignore_errors=True)


async def _make(
    pod: Pod, volume: Volume, folders: PodFolders, sources: ValueSources, find_claim: FindClaim
) -> Path:
    files = build_payload(pod, volume, sources)
    folder = folders.volume(volume.name)
    namespace = pod.metadata.namespace
    if files is not None:
        write_payload(folder, files, volume_group(pod))
        return folder
    if volume.empty_dir is not None:
        if volume.empty_dir.medium == "Memory":
            folder = make_private_folder(folders.memory) / volume.name
        return _empty_dir(folder, volume_group(pod))
    if volume.host_path is not None:
        return _host_path(volume.host_path)
    if volume.persistent_volume_claim is not None:
        return await find_claim(namespace, volume.persistent_volume_claim.claim_name)
    if volume.ephemeral is not None:
        name = f"{pod.metadata.name}-{volume.name}"
        return await find_claim(namespace, name, pod.metadata.uid)
    raise ContainerConfigError("its type is not available on this cluster")


def _empty_dir(folder: Path, group: int | None) -> Path:
    """A folder that containers of any user may write: no other process can reach it."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o777)
    if group is not None:
        give_to_group(folder, group)
    return folder


def _host_path(source: HostPathVolumeSource) -> Path:
    path, kind = Path(source.path), source.type
    try:
        if kind == "DirectoryOrCreate":
            path.mkdir(parents=True, exist_ok=True)
        elif kind == "FileOrCreate":
            with contextlib.suppress(FileExistsError):
                path.touch(exist_ok=False)
        elif not kind and not path.exists():
            # Container engines create a missing folder if no type is specified.
            path.mkdir(parents=True)
        mode = path.stat().st_mode
    except OSError as error:
        raise ContainerConfigError(f"hostPath {path}: {error.strerror or error}") from error
    is_of_kind = _KINDS.get(kind.removesuffix("OrCreate"))
    if is_of_kind is not None and not is_of_kind(mode):
        raise ContainerConfigError(f"hostPath type check failed: {path} is not a {kind.lower()}")
    return path
