"""Volumes of a pod: the folders behind its mounts, from before its containers start to their end.

The files of a volume of API objects are links into ``..data``, as in Kubernetes, which is a link to
a folder with a time in its name. Invariant: an update replaces only this link, so all files change
atomically. Owner, group and permission bits of the files are set before.

A pod reaches the API server with the token of its service account, the CA and the namespace, in a
volume that the API server adds to the pod unless it opts out. As in Kubernetes a token is bound to
the pod, and renewed after 80 % of its lifetime, and after a day at the latest. While a renewal
fails the present token is used until it expires.
"""

import contextlib
import os
import shutil
import stat
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gangline.api.core.pod import Pod
from gangline.api.core.volumes import (
    ConfigMapProjection,
    ConfigMapVolumeSource,
    DownwardAPIVolumeFile,
    HostPathVolumeSource,
    SecretProjection,
    SecretVolumeSource,
    Volume,
    VolumeProjection,
)
from gangline.api.meta.objects import Object
from gangline.api.resources import SERVICE_ACCOUNTS
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import ApiError, NotFound
from gangline.local.kubelet.configuration import (
    ContainerConfigError,
    ObjectName,
    TokenSpec,
    ValueSources,
    field_value,
    find_container,
    object_content,
    references,
    resource_value,
    token_spec,
)
from gangline.local.kubelet.files.private import give_to_group, make_private_folder
from gangline.local.kubelet.settings import KubeletSettings

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


_DEFAULT_MODE = 0o644
_TOKEN_MODE = 0o600
_FOLDER_MODE = 0o755
_GROUP_READS = 0o440
_GROUP_FOLDER = 0o2550


@dataclass(frozen=True, slots=True)
class ProjectedFile:
    content: bytes
    mode: int
    owner: int | None = None
    """The user that owns it; None for the kubelet's."""


Payload = dict[str, ProjectedFile]
"""Files by their path in the volume."""


def build_payload(pod: Pod, volume: Volume, sources: ValueSources) -> Payload | None:
    """The files of a volume of API objects; None for any other volume. Raises ContainerConfigError:
    an object or key that it needs is missing.
    """
    if (config_map := volume.config_map) is not None:
        mode = _mode(config_map.default_mode)
        return _pick(sources, ("configmap", config_map.name), config_map, mode)
    if (secret := volume.secret) is not None:
        mode = _mode(secret.default_mode)
        return _pick(sources, ("secret", secret.secret_name), secret, mode)
    if (downward := volume.downward_api) is not None:
        return _fields(pod, downward.items, _mode(downward.default_mode), sources)
    if (projected := volume.projected) is not None:
        files: Payload = {}
        for part in projected.sources:
            files |= _part(pod, part, _mode(projected.default_mode), sources)
        return files
    return None


def token_file(pod: Pod, token: str, mode: int = _DEFAULT_MODE) -> ProjectedFile:
    """The file of a service account token.

    As in Kubernetes only its owner reads it if the pod names a user or a group for it: the user of
    all containers, and ``fsGroup``, which gets access when the volume is written.
    """
    user = common_user(pod)
    context = pod.spec.security_context
    group = context.fs_group if context is not None else None
    restricted = user is not None or group is not None
    return ProjectedFile(token.encode(), _TOKEN_MODE if restricted else mode, user)


def common_user(pod: Pod) -> int | None:
    """The user that all containers of a pod specify; None if they differ or one has none."""
    shared = pod.spec.security_context.run_as_user if pod.spec.security_context else None
    users = {
        container.security_context.run_as_user
        if container.security_context is not None
        and container.security_context.run_as_user is not None
        else shared
        for container in (*pod.spec.init_containers, *pod.spec.containers)
    }
    return users.pop() if len(users) == 1 else None


def volume_group(pod: Pod) -> int | None:
    """The pod's ``fsGroup``; None if there is none, or only root could give files to it."""
    context = pod.spec.security_context
    return context.fs_group if context is not None and os.geteuid() == 0 else None


def write_payload(folder: Path, files: Payload, group: int | None = None) -> bool:
    """Make a volume's folder contain exactly these files; False if it did already.

    ``group`` gets read access. Owners and groups are set by root only. Raises OSError: the disk is
    full, or the folder cannot be written.
    """
    data = folder / "..data"
    if data.is_dir() and _read_payload(data) == _stored(files, group):
        return False
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / f"..{time.strftime('%Y_%m_%d_%H_%M_%S')}.{time.time_ns() % 10**9}"
    fresh.mkdir()
    for path, file in files.items():
        _write_file(fresh / path, file)
    # Kubernetes' bits, whatever the kubelet's umask is: containers may have another user.
    for place, _, names, descriptor in os.fwalk(fresh):
        _give_folder(Path(place), group)
        for name in names:
            if group is not None:
                os.chown(name, -1, group, dir_fd=descriptor, follow_symlinks=False)
    _give_folder(folder, group)
    for path, file in _stored(files, group).items():
        (fresh / path).chmod(file.mode)
    before = folder / os.readlink(data) if data.is_symlink() else None
    (folder / "..data_tmp").unlink(missing_ok=True)
    (folder / "..data_tmp").symlink_to(fresh.name)
    (folder / "..data_tmp").rename(data)
    _link(folder, {path.split("/")[0] for path in files})
    if before is not None:
        shutil.rmtree(before, ignore_errors=True)
    return True


def _write_file(place: Path, file: ProjectedFile) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as stream:
        stream.write(file.content)
        if file.owner is not None and os.geteuid() == 0:
            os.fchown(descriptor, file.owner, -1)


def _give_folder(folder: Path, group: int | None) -> None:
    if group is not None:
        os.chown(folder, -1, group)
    folder.chmod(_FOLDER_MODE if group is None else _FOLDER_MODE | _GROUP_FOLDER)


def _stored(files: Payload, group: int | None) -> Payload:
    """The files as they are stored: the group reads them, and only root changes owners."""
    own = os.geteuid()
    return {
        path: ProjectedFile(
            file.content,
            file.mode if group is None else file.mode | _GROUP_READS,
            file.owner if file.owner is not None and own == 0 else own,
        )
        for path, file in files.items()
    }


def _link(folder: Path, names: set[str]) -> None:
    """Link the top-level names of ``..data`` into the volume itself."""
    for name in names:
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"..data/{name}")
    for old in folder.iterdir():
        if old.is_symlink() and old.name not in names and not old.name.startswith(".."):
            old.unlink()


def _read_payload(data: Path) -> Payload:
    files = {}
    for path in data.rglob("*"):
        if path.is_file():
            status = path.stat()
            file = ProjectedFile(path.read_bytes(), status.st_mode & 0o7777, status.st_uid)
            files[str(path.relative_to(data))] = file
    return files


def _mode(written: int | None, default: int = _DEFAULT_MODE) -> int:
    """The written permission bits; 0 is a value too."""
    return default if written is None else written


def _part(pod: Pod, part: VolumeProjection, mode: int, sources: ValueSources) -> Payload:
    for kind, ref in references(part.config_map, part.secret):
        return _pick(sources, (kind, ref.name), ref, mode)
    if part.downward_api is not None:
        return _fields(pod, part.downward_api.items, mode, sources)
    if part.service_account_token is not None:
        projection = part.service_account_token
        token = sources.service_account_tokens.get(token_spec(projection))
        if token is None:
            account = pod.spec.service_account_name or "default"
            raise ContainerConfigError(f'serviceaccount "{account}" not found')
        return {_checked_path(projection.path): token_file(pod, token, mode)}
    raise ContainerConfigError("a projected volume names a source that this cluster does not have")


_KeySelection = ConfigMapVolumeSource | SecretVolumeSource | ConfigMapProjection | SecretProjection


def _pick(sources: ValueSources, named: ObjectName, selection: _KeySelection, mode: int) -> Payload:
    values = object_content(sources, named, selection.optional)
    if not selection.items:
        return {_checked_path(key): ProjectedFile(content, mode) for key, content in values.items()}
    files: Payload = {}
    for item in selection.items:
        if item.key in values:
            files[_checked_path(item.path)] = ProjectedFile(
                values[item.key], _mode(item.mode, mode)
            )
        elif not selection.optional:
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
            of = find_container(pod, resource.container_name)
            if of is None:
                raise ContainerConfigError(f'container "{resource.container_name}" not found')
            text = resource_value(of, resource, sources.allocatable)
        files[_checked_path(item.path)] = ProjectedFile(text.encode(), _mode(item.mode, mode))
    return files


def _checked_path(path: str) -> str:
    """Return the path; it must not lead out of its volume."""
    parts = path.split("/")
    if path.startswith("/") or ".." in parts or not path or parts[0].startswith(".."):
        raise ContainerConfigError(f"path {path!r} leads out of its volume")
    return path


RENEW_AT = 0.8
"""The part of its lifetime after which a token is renewed."""
LONGEST_USE_S = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class _IssuedToken:
    text: str
    renew_at: float
    expires_at: float


class PodTokens:
    """The tokens of one pod. Times are those of a monotonic clock."""

    def __init__(
        self,
        client: ApiClient,
        settings: KubeletSettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._settings = settings
        self._clock = clock
        self._issued: dict[TokenSpec, _IssuedToken] = {}

    async def get(self, pod: Pod, spec: TokenSpec) -> str:
        """Return a token; empty if the pod's account does not exist. Raises ApiError: the API
        server does not answer or refuses, and no valid token is left.
        """
        present = self._issued.get(spec)
        now = self._clock()
        if present is not None and now < present.renew_at:
            return present.text
        try:
            issued = await self._request(pod, spec)
        except NotFound:
            self._issued.pop(spec, None)
            return ""
        except ApiError:
            if present is None or now >= present.expires_at:
                raise
            return present.text
        self._issued[spec] = issued
        return issued.text

    def renewal_in_s(self, spec: TokenSpec) -> float:
        """Return the seconds until a token must be renewed; 0 if it is due or was not issued."""
        present = self._issued.get(spec)
        return max(0.0, present.renew_at - self._clock()) if present is not None else 0.0

    async def _request(self, pod: Pod, spec: TokenSpec) -> _IssuedToken:
        account = pod.spec.service_account_name or "default"
        now = self._clock()
        answer = await request_token(self._client, account, spec, "Pod", pod)
        lifetime_s = float(answer["spec"]["expirationSeconds"])
        longest = self._settings.token_use_s or LONGEST_USE_S
        return _IssuedToken(
            str(answer["status"]["token"]),
            now + min(lifetime_s * RENEW_AT, longest),
            now + lifetime_s,
        )


async def request_token(
    client: ApiClient, account: str, spec: TokenSpec, kind: str, bound_to: Object
) -> Any:
    """Return the answer to a TokenRequest for an account: a token bound to an object."""
    meta = bound_to.metadata
    bound = {"kind": kind, "apiVersion": "v1", "name": meta.name, "uid": meta.uid}
    requested: dict[str, Any] = {"expirationSeconds": spec.lifetime_s, "boundObjectRef": bound}
    if spec.audience:
        requested["audiences"] = [spec.audience]
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": requested}
    path = SERVICE_ACCOUNTS.path(meta.namespace, account, "token")
    return await client.request_json("POST", path, body=body)
