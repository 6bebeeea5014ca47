"""Creates a backup of a cluster that runs or is stopped.

The API server of a running cluster writes a snapshot of one revision beside its state, while
clients go on writing. The state of a stopped cluster is read under the cluster's lock. Credentials,
keys and the image map come from the cluster's folder: they never leave the machine by network.
"""

import asyncio
import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from gangline.kube.client.client import ApiClient
from gangline.kube.config.config import load_config
from gangline.kube.errors import KubeError
from gangline.local.apiserver.server import SNAPSHOT_FILE
from gangline.local.apiserver.storage.backup_record import (
    LAST_BACKUP,
    BackupRecord,
    write_record,
)
from gangline.local.apiserver.storage.durability import Durability
from gangline.local.apiserver.storage.encryption import (
    GENERATED_FILE,
    EncryptionKeyError,
    EncryptionKeys,
    read_key_file,
)
from gangline.local.apiserver.storage.sqlite import DatabaseError, StateDatabase
from gangline.local.apiserver.storage.state_file import list_objects
from gangline.local.backups.archive import (
    FORMAT,
    IMAGE_MAP,
    SETTINGS,
    STATE,
    BackupError,
    Manifest,
    checksum,
    write_archive,
)
from gangline.local.directory import ClusterDirectory, ClusterLock, ClusterNotRunning

SNAPSHOT_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Backup:
    """A backup that was written."""

    manifest: Manifest
    has_key: bool
    """True if the archive has the key that its Secrets are encrypted with."""


def create_backup(home: ClusterDirectory, target: Path, *, with_key: bool = True) -> Backup:
    """Write a backup of a cluster to ``target``, which must not exist.

    ``with_key`` includes the generated encryption key. A key file of the user is never included.

    Raises:
        ClusterNotRunning: there is no such cluster.
        ClusterError: the cluster's state cannot be read, or the archive cannot be written.
    """
    if not (home.folder / "pki").is_dir():
        raise ClusterNotRunning(f"there is no cluster {home.name} in {home.root}")
    target = target.absolute()
    if target.exists():
        raise BackupError(f"{target} exists: choose another name, or remove it")
    try:
        with (
            _one_backup_at_a_time(home),
            tempfile.TemporaryDirectory(dir=target.parent, prefix=".gangline-backup-") as work,
        ):
            state = Path(work, STATE)
            revision = _write_state(home, state)
            return _write_archive(home, target, state, revision, with_key)
    except OSError as error:
        raise BackupError(f"cannot write {target}: {error.strerror or error}") from error


@contextlib.contextmanager
def _one_backup_at_a_time(home: ClusterDirectory) -> Iterator[None]:
    descriptor = os.open(home.folder / "backup.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _write_state(home: ClusterDirectory, path: Path) -> int:
    if home.read_run_record() is not None:
        revision = asyncio.run(_request_snapshot(home))
        shutil.move(home.folder / SNAPSHOT_FILE, path)
        return revision
    with ClusterLock(home):
        return _copy_stopped_state(home.folder / STATE, path)


async def _request_snapshot(home: ClusterDirectory) -> int:
    config = load_config(str(home.kubeconfig))
    try:
        async with ApiClient(config, user_agent="gangline-backup") as client:
            answer = await client.request_json("GET", "/snapshot", timeout_s=SNAPSHOT_TIMEOUT_S)
    except KubeError as error:
        raise BackupError(
            f"the API server of cluster {home.name} wrote no snapshot: {error}"
        ) from error
    return int(answer["revision"])


def _copy_stopped_state(source: Path, path: Path) -> int:
    if not source.exists():
        raise BackupError(f"{source} does not exist: there is nothing to back up")
    try:
        database = StateDatabase(source, durability=Durability.PROCESS)
        try:
            # Values stay as they are stored: no key is needed.
            return database.copy_current(path)
        finally:
            database.close()
    except DatabaseError as error:
        raise BackupError(str(error)) from error


def _write_archive(
    home: ClusterDirectory, target: Path, state: Path, revision: int, with_key: bool
) -> Backup:
    needed = [EncryptionKeys.key_name(stored) for _, stored in list_objects(state)]
    encrypted_with = sorted(set(needed) - {""})
    files = {STATE: state}
    for path in sorted((home.folder / "pki").iterdir()):
        if path.is_file() and path.suffix != ".new":
            files[f"pki/{path.name}"] = path
    generated = home.folder / GENERATED_FILE
    if with_key and generated.exists():
        files[GENERATED_FILE] = generated
    settings = home.folder / SETTINGS
    if settings.exists():
        files[SETTINGS] = settings
        image_map = _image_map(settings)
        if image_map is not None:
            files[IMAGE_MAP] = image_map
    now = datetime.now(UTC)
    sums = {name: checksum(path) for name, path in files.items()}
    manifest = Manifest(FORMAT, home.name, now, revision, len(needed), encrypted_with, sums)
    write_archive(target, manifest, files)
    write_record(home.folder / LAST_BACKUP, BackupRecord(str(target), now, revision))
    return Backup(manifest, _has_keys(files.get(GENERATED_FILE), encrypted_with))


def _image_map(settings: Path) -> Path | None:
    try:
        recorded = msgspec.json.decode(settings.read_bytes(), type=dict[str, object])
    except (OSError, msgspec.DecodeError):
        return None
    value = recorded.get("image_map")
    path = Path(value) if isinstance(value, str) else None
    return path if path is not None and path.is_file() else None


def _has_keys(path: Path | None, names: list[str]) -> bool:
    try:
        known = read_key_file(path) if path is not None else {}
    except EncryptionKeyError:
        known = {}
    return set(names) <= known.keys()
