"""Volumes of API objects: their files, and atomic updates of them.

As in Kubernetes the files are links into ``..data``, which is a link to a folder with a time in its
name. Invariant: an update replaces only this link, so all files change atomically.
"""

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gangline.api.core.pod import Pod
from gangline.api.core.volumes import (
    DownwardAPIVolumeFile,
    KeyToPath,
    ProjectedVolumeSource,
    Volume,
    VolumeProjection,
)
from gangline.local.kubelet.config.environment import (
    ContainerConfigError,
    ValueSources,
    field_value,
    resource_value,
)

_DEFAULT_MODE = 0o644


@dataclass(frozen=True, slots=True)
class ProjectedFile:
    """Content and permission bits of one file."""

    content: bytes
    mode: int


Payload = dict[str, ProjectedFile]
"""Files by their path in the volume."""


def build_payload(pod: Pod, volume: Volume, sources: ValueSources) -> Payload | None:
    """The files of a volume of API objects; None for any other volume.

    Raises:
        ContainerConfigError: an object or key that it needs is missing.
    """
    if (config_map := volume.config_map) is not None:
        mode = config_map.default_mode or _DEFAULT_MODE
        found = _content(sources.config_maps, "configmap", config_map.name, config_map.optional)
        return _pick(found, config_map.items, mode, config_map.optional)
    if (secret := volume.secret) is not None:
        mode = secret.default_mode or _DEFAULT_MODE
        found = _content(sources.secrets, "secret", secret.secret_name, secret.optional)
        return _pick(found, secret.items, mode, secret.optional)
    if (downward := volume.downward_api) is not None:
        mode = downward.default_mode or _DEFAULT_MODE
        return _fields(pod, downward.items, mode, sources)
    if volume.projected is not None:
        return _projected(pod, volume.projected, sources)
    return None


def write_payload(folder: Path, files: Payload) -> bool:
    """Make a volume's folder contain exactly these files; False if it did already.

    Raises:
        OSError: the disk is full, or the folder cannot be written.
    """
    data = folder / "..data"
    if data.is_dir() and _read_payload(data) == files:
        return False
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / f"..{time.strftime('%Y_%m_%d_%H_%M_%S')}.{time.time_ns() % 10**9}"
    for path, file in files.items():
        place = fresh / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(file.content)
        place.chmod(file.mode)
    fresh.mkdir(exist_ok=True)
    before = folder / os.readlink(data) if data.is_symlink() else None
    (folder / "..data_tmp").unlink(missing_ok=True)
    (folder / "..data_tmp").symlink_to(fresh.name)
    (folder / "..data_tmp").rename(data)
    _link(folder, {path.split("/")[0] for path in files})
    if before is not None:
        shutil.rmtree(before, ignore_errors=True)
    return True


def _link(folder: Path, names: set[str]) -> None:
    """Link the top-level names of ``..data`` into the volume itself."""
    for name in names:
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"..data/{name}")
    for old in folder.iterdir():
        if old.is_symlink() and old.name not in names and not old.name.startswith(".."):
            old.unlink()


def _read_payload(data: Path) -> Payload:
    return {
        str(path.relative_to(data)): ProjectedFile(path.read_bytes(), path.stat().st_mode & 0o7777)
        for path in data.rglob("*")
        if path.is_file()
    }


def _projected(pod: Pod, source: ProjectedVolumeSource, sources: ValueSources) -> Payload:
    mode = source.default_mode or _DEFAULT_MODE
    files: Payload = {}
    for part in source.sources:
        files |= _part(pod, part, mode, sources)
    return files


def _part(pod: Pod, part: VolumeProjection, mode: int, sources: ValueSources) -> Payload:
    if (config_map := part.config_map) is not None:
        found = _content(sources.config_maps, "configmap", config_map.name, config_map.optional)
        return _pick(found, config_map.items, mode, config_map.optional)
    if (secret := part.secret) is not None:
        found = _content(sources.secrets, "secret", secret.name, secret.optional)
        return _pick(found, secret.items, mode, secret.optional)
    if part.downward_api is not None:
        return _fields(pod, part.downward_api.items, mode, sources)
    if part.service_account_token is not None:
        token = sources.service_account_token.encode()
        return {_checked_path(part.service_account_token.path): ProjectedFile(token, mode)}
    raise ContainerConfigError("a projected volume names a source that this cluster does not have")


def _pick(
    found: Mapping[str, bytes], items: Sequence[KeyToPath], mode: int, optional: bool | None
) -> Payload:
    if not items:
        return {_checked_path(key): ProjectedFile(content, mode) for key, content in found.items()}
    files: Payload = {}
    for item in items:
        if item.key in found:
            files[_checked_path(item.path)] = ProjectedFile(found[item.key], item.mode or mode)
        elif not optional:
            raise ContainerConfigError(f"references non-existent config key: {item.key}")
    return files


def _fields(
    pod: Pod, items: Sequence[DownwardAPIVolumeFile], mode: int, sources: ValueSources
) -> Payload:
    files: Payload = {}
    for item in items:
        text = ""
        if item.field_ref is not None:
            text = field_value(pod, item.field_ref.field_path, sources)
        elif (resource := item.resource_field_ref) is not None:
            every = [*pod.spec.containers, *pod.spec.init_containers]
            of = next((each for each in every if each.name == resource.container_name), None)
            if of is None:
                raise ContainerConfigError(f'container "{resource.container_name}" not found')
            text = resource_value(of, resource, sources.allocatable)
        files[_checked_path(item.path)] = ProjectedFile(text.encode(), item.mode or mode)
    return files


def _content(
    found: Mapping[str, Mapping[str, bytes]], kind: str, name: str, optional: bool | None
) -> Mapping[str, bytes]:
    if name not in found and not optional:
        raise ContainerConfigError(f'{kind} "{name}" not found')
    return found.get(name, {})


def _checked_path(path: str) -> str:
    """Return the path; it must not lead out of its volume."""
    parts = path.split("/")
    if path.startswith("/") or ".." in parts or not path or parts[0].startswith(".."):
        raise ContainerConfigError(f"path {path!r} leads out of its volume")
    return path
