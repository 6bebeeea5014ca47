"""Backups of a cluster: one archive with its state, credentials and settings, and its restoration.

The archive is ``manifest.json``, then the files that it lists, as ``tar.gz``. The manifest has size
and SHA-256 of every other file, so a truncated, changed or foreign archive is refused before
anything is replaced. Names are a closed set: an archive cannot place a file elsewhere. Persistent
volumes and logs of pods are not part of a backup.

Backup: the API server of a running cluster writes a snapshot of one revision while clients go on
writing; the state of a stopped cluster is read under the cluster's lock. Credentials, keys and the
image map come from the cluster's folder: they never leave the machine by network.

Restore: everything is unpacked and checked in a folder beside the present state. Then the present
files are moved aside, and the new ones into place, the state file last. While the folder
``restoring`` exists, the cluster does not start: an interrupted restore is repeated. Revisions
never go back, or clients that know a later state would miss changes: the restored state gets a
revision far above any that the cluster has used, and no history, so that all watches start again,
as with ``etcdutl snapshot restore --bump-revision --mark-compacted``.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import io
import os
import re
import shutil
import sqlite3
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

import msgspec

from gangline.kube.client.client import ApiClient
from gangline.kube.config.config import load_config
from gangline.kube.errors import KubeError
from gangline.local.apiserver.server import SNAPSHOT_FILE
from gangline.local.apiserver.storage.durable_files import Durability, publish_new, sync_directory
from gangline.local.apiserver.storage.encryption import (
    GENERATED_FILE,
    EncryptionKeyError,
    EncryptionKeys,
    read_key_file,
)
from gangline.local.apiserver.storage.sqlite import DatabaseError, StateDatabase
from gangline.local.apiserver.storage.state_file import (
    LAST_BACKUP,
    LAST_RESTORE,
    BackupRecord,
    list_objects,
    newest_revision,
    read_record,
    wal_path,
    write_record,
)
from gangline.local.directory import (
    RESTORING,
    ClusterDirectory,
    ClusterError,
    ClusterLock,
    ClusterNotRunning,
)

FORMAT = 1
MANIFEST = "manifest.json"
STATE = "state.db"
IMAGE_MAP = "image-map"
SETTINGS = "settings.json"
FILE_NAME = re.compile(
    rf"{re.escape(STATE)}|{re.escape(GENERATED_FILE)}|{IMAGE_MAP}|{re.escape(SETTINGS)}"
    r"|pki/[a-z0-9][a-z0-9._-]*"
)
MAX_MANIFEST_BYTES = 1 << 20
BLOCK_BYTES = 1 << 20


class FileSum(msgspec.Struct, frozen=True):
    size: int
    sha256: str


class BackupManifest(msgspec.Struct, frozen=True):
    format: int
    cluster: str
    created: datetime
    revision: int
    """The resourceVersion of the state."""

    objects: int
    encrypted_with: list[str]
    """The names of the keys that Secrets are encrypted with; empty if they are not encrypted."""

    files: dict[str, FileSum]


class BackupError(ClusterError):
    """A backup cannot be written or used; the message gives the remedy."""


def checksum(path: Path) -> FileSum:
    with path.open("rb") as file:
        return FileSum(path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())


def write_archive(target: Path, manifest: BackupManifest, files: Mapping[str, Path]) -> None:
    """Write the archive, readable by its owner only; it appears under its name when complete.
    Raises BackupError: the target exists; OSError.
    """
    temporary = target.with_name(f".{target.name}.new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            with tarfile.open(fileobj=file, mode="w:gz", compresslevel=1) as archive:
                _add(archive, MANIFEST, io.BytesIO(encoded := msgspec.json.encode(manifest)))
                for name, path in files.items():
                    with path.open("rb") as source:
                        _add(archive, name, source, manifest.files[name].size)
            file.flush()
            os.fsync(descriptor)
        assert len(encoded) <= MAX_MANIFEST_BYTES
        try:
            publish_new(temporary, target)
        except FileExistsError:
            raise BackupError(f"{target} exists: choose another name, or remove it") from None
    finally:
        temporary.unlink(missing_ok=True)


def _add(archive: tarfile.TarFile, name: str, source: IO[bytes], size: int = -1) -> None:
    entry = tarfile.TarInfo(name)
    entry.mode = 0o600
    entry.size = size if size >= 0 else len(source.read())
    source.seek(0)
    archive.addfile(entry, source)


def unpack_archive(archive_path: Path, folder: Path) -> BackupManifest:
    """Unpack an archive into an empty folder, and check every file. Raises BackupError: it is no
    backup, is incomplete, was changed, or has a newer format.
    """
    try:
        with tarfile.open(archive_path, mode="r:gz") as archive:
            manifest = _read_manifest(archive, archive_path)
            names = set()
            for entry in archive:
                if entry.name != MANIFEST:
                    _extract(archive, entry, manifest, folder, archive_path)
                    names.add(entry.name)
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise BackupError(f"cannot read {archive_path}: {error.strerror}") from error
        raise damaged_archive(archive_path, str(error)) from error
    if missing := manifest.files.keys() - names:
        raise damaged_archive(archive_path, f"{min(missing)} is missing")
    return manifest


def _read_manifest(archive: tarfile.TarFile, path: Path) -> BackupManifest:
    entry = archive.next()
    content = None
    if entry is not None and entry.name == MANIFEST and entry.size <= MAX_MANIFEST_BYTES:
        content = archive.extractfile(entry)
    if content is None:
        raise BackupError(f"{path} is not a backup of a cluster: it has no {MANIFEST}")
    raw = content.read()
    with contextlib.suppress(msgspec.DecodeError, msgspec.ValidationError):
        version = msgspec.json.decode(raw, type=dict[str, object]).get("format")
        if isinstance(version, int) and version > FORMAT:
            raise BackupError(
                f"{path} has format {version}, which a newer version of gangline wrote; "
                f"this one reads formats up to {FORMAT}"
            )
    try:
        return msgspec.json.decode(raw, type=BackupManifest)
    except msgspec.DecodeError as error:
        raise damaged_archive(path, f"{MANIFEST}: {error}") from error


def _extract(
    archive: tarfile.TarFile,
    entry: tarfile.TarInfo,
    manifest: BackupManifest,
    folder: Path,
    archive_path: Path,
) -> None:
    expected = manifest.files.get(entry.name)
    if expected is None or not entry.isreg() or not FILE_NAME.fullmatch(entry.name):
        raise damaged_archive(archive_path, f"unexpected entry {entry.name!r}")
    source = archive.extractfile(entry)
    assert source is not None
    target = folder / entry.name
    target.parent.mkdir(mode=0o700, exist_ok=True)
    digest, left = hashlib.sha256(), expected.size
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        while block := source.read(BLOCK_BYTES):
            digest.update(block)
            left -= len(block)
            file.write(block)
        file.flush()
        os.fsync(descriptor)
    if left or digest.hexdigest() != expected.sha256:
        raise damaged_archive(archive_path, f"the checksum of {entry.name} is wrong")


def damaged_archive(path: Path, detail: str) -> BackupError:
    return BackupError(f"{path} is damaged or incomplete ({detail}): use another backup")


SNAPSHOT_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Backup:
    manifest: BackupManifest
    has_key: bool
    """True if the archive has the key that its Secrets are encrypted with."""


def create_backup(cluster: ClusterDirectory, target: Path, *, with_key: bool = True) -> Backup:
    """Write a backup of a cluster to ``target``, which must not exist. Raises ClusterError.

    ``with_key`` includes the generated encryption key. A key file of the user is never included.
    """
    if not (cluster.folder / "pki").is_dir():
        raise ClusterNotRunning(f"there is no cluster {cluster.name} in {cluster.root}")
    target = target.absolute()
    if target.exists():
        raise BackupError(f"{target} exists: choose another name, or remove it")
    try:
        with (
            _one_backup_at_a_time(cluster),
            tempfile.TemporaryDirectory(dir=target.parent, prefix=".gangline-backup-") as work,
        ):
            state = Path(work, STATE)
            revision = _write_state(cluster, state)
            return _write_archive(cluster, target, state, revision, with_key)
    except OSError as error:
        raise BackupError(f"cannot write {target}: {error.strerror or error}") from error


@contextlib.contextmanager
def _one_backup_at_a_time(cluster: ClusterDirectory) -> Iterator[None]:
    descriptor = os.open(
        cluster.folder / "backup.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
    )
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _write_state(cluster: ClusterDirectory, path: Path) -> int:
    if cluster.read_run_record() is not None:
        revision = asyncio.run(_request_snapshot(cluster))
        shutil.move(cluster.folder / SNAPSHOT_FILE, path)
        return revision
    with ClusterLock(cluster):
        return _copy_stopped_state(cluster.folder / STATE, path)


async def _request_snapshot(cluster: ClusterDirectory) -> int:
    config = load_config(str(cluster.kubeconfig))
    try:
        async with ApiClient(config, user_agent="gangline-backup") as client:
            answer = await client.request_json("GET", "/snapshot", timeout_s=SNAPSHOT_TIMEOUT_S)
    except KubeError as error:
        raise BackupError(
            f"the API server of cluster {cluster.name} wrote no snapshot: {error}"
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
    cluster: ClusterDirectory, target: Path, state: Path, revision: int, with_key: bool
) -> Backup:
    needed = [EncryptionKeys.key_name(stored) for _, stored in list_objects(state)]
    encrypted_with = sorted(set(needed) - {""})
    files = {STATE: state}
    for path in sorted((cluster.folder / "pki").iterdir()):
        if path.is_file() and path.suffix != ".new":
            files[f"pki/{path.name}"] = path
    generated = cluster.folder / GENERATED_FILE
    if with_key and generated.exists():
        files[GENERATED_FILE] = generated
    settings = cluster.folder / SETTINGS
    if settings.exists():
        files[SETTINGS] = settings
        image_map = _image_map(settings)
        if image_map is not None:
            files[IMAGE_MAP] = image_map
    now = datetime.now(UTC)
    sums = {name: checksum(path) for name, path in files.items()}
    manifest = BackupManifest(
        FORMAT, cluster.name, now, revision, len(needed), encrypted_with, sums
    )
    write_archive(target, manifest, files)
    write_record(cluster.folder / LAST_BACKUP, BackupRecord(str(target), now, revision))
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
        keys = read_key_file(path) if path is not None else {}
    except EncryptionKeyError:
        keys = {}
    return set(names) <= keys.keys()


REVISION_BUMP = 1_000_000_000
"""As in etcd's guide: more than a cluster writes between a backup and its restore."""

REPLACED = (STATE, f"{STATE}-wal", "pki", SETTINGS, IMAGE_MAP, GENERATED_FILE)


@dataclass(frozen=True, slots=True)
class RestoredCluster:
    manifest: BackupManifest
    revision: int
    """The revision that the cluster continues from."""

    replaced: Path | None
    """The folder with the former state; None if there was none."""

    settings: bytes
    """The encoded settings of the cluster's last start; empty if they are not known."""

    needs_key: bool
    """True if the cluster starts only with ``--encryption-key``."""


def restore_backup(
    archive: Path, cluster: ClusterDirectory, *, force: bool = False, key_file: Path | None = None
) -> RestoredCluster:
    """Make the state of a backup that of a cluster, which must not run. Raises ClusterError: the
    backup cannot be used, or the cluster runs, or it has a state and ``force`` is not set. Then the
    state is unchanged.
    """
    cluster.prepare()
    with ClusterLock(cluster):
        if (cluster.folder / STATE).exists() and not force:
            raise BackupError(
                f"cluster {cluster.name} has a state in {cluster.folder}: replace it with --force "
                "(it is moved aside), or restore to another cluster with --name"
            )
        staging = cluster.folder / RESTORING
        prepared = cluster.folder / f"{RESTORING}.new"
        shutil.rmtree(prepared, ignore_errors=True)
        prepared.mkdir(mode=0o700)
        try:
            manifest = unpack_archive(archive, prepared)
            own_key = cluster.folder / GENERATED_FILE
            keys = _keys([prepared / GENERATED_FILE, own_key], key_file)
            revision = _check_and_bump(archive, prepared / STATE, manifest, keys, cluster.folder)
        except BaseException:
            shutil.rmtree(prepared, ignore_errors=True)
            raise
        # From here on, an interrupted restore must be repeated.
        shutil.rmtree(staging, ignore_errors=True)
        prepared.rename(staging)
        sync_directory(cluster.folder)
        replaced = _move_aside(cluster.folder, keep_key=not (staging / GENERATED_FILE).exists())
        _move_in(staging, cluster.folder)
        record = BackupRecord(str(archive.absolute()), datetime.now(UTC), revision)
        write_record(cluster.folder / LAST_RESTORE, record)
        staging.rmdir()
        sync_directory(cluster.folder)
        needs_key = not set(manifest.encrypted_with) <= _keys([own_key], None).keys.keys()
        recorded = cluster.folder / SETTINGS
        settings = recorded.read_bytes() if recorded.exists() else b""
        return RestoredCluster(manifest, revision, replaced, settings, needs_key)


def _keys(generated: list[Path], key_file: Path | None) -> EncryptionKeys:
    keys: dict[str, bytes] = {}
    try:
        for path in [*([key_file] if key_file else []), *filter(Path.exists, generated)]:
            for name, key in read_key_file(path).items():
                keys.setdefault(name, key)
    except EncryptionKeyError as error:
        raise BackupError(str(error)) from error
    return EncryptionKeys(keys, "the key files" if keys else "")


def _check_and_bump(
    archive: Path, state: Path, manifest: BackupManifest, keys: EncryptionKeys, folder: Path
) -> int:
    """Check the state file completely, and set the revision that it continues from."""
    if STATE not in manifest.files:
        raise damaged_archive(archive, f"{STATE} is missing")
    revision = REVISION_BUMP + max(manifest.revision, *_known_revisions(folder))
    try:
        database = StateDatabase(state, durability=Durability.DISK, keys=keys)
        try:
            rows = list(database.rows())
            if database.horizon() != manifest.revision or len(rows) != manifest.objects:
                raise damaged_archive(archive, f"{STATE} is not at revision {manifest.revision}")
            database.check_integrity()
            database.set_horizon(revision)
        finally:
            database.close()
    except EncryptionKeyError as error:
        raise BackupError(f"{error} (also for 'gangline restore')") from error
    except DatabaseError as error:
        raise damaged_archive(archive, str(error)) from error
    return revision


def _known_revisions(folder: Path) -> list[int]:
    """Return revisions that clients of this cluster may have seen."""
    revisions = [0]
    for name in (LAST_BACKUP, LAST_RESTORE):
        record = read_record(folder / name)
        if record is not None:
            revisions.append(record.revision)
    with contextlib.suppress(sqlite3.Error, OSError):  # it is damaged: that is why it is replaced
        revisions.append(newest_revision(folder / STATE))
    return revisions


def _move_aside(folder: Path, *, keep_key: bool) -> Path | None:
    """Move the present state to a new folder. The restored Secrets may need its key."""
    kept = {GENERATED_FILE} if keep_key else set()
    names = [name for name in REPLACED if name not in kept and (folder / name).exists()]
    if not names:
        return None
    aside = folder / f"replaced-{datetime.now(UTC):%Y%m%dT%H%M%S.%f}"
    aside.mkdir(mode=0o700)
    for name in names:
        (folder / name).rename(aside / name)
    sync_directory(aside)
    sync_directory(folder)
    return aside


def _move_in(staging: Path, folder: Path) -> None:
    assert not wal_path(staging / STATE).exists()
    names = sorted((path.name for path in staging.iterdir()), key=lambda name: name == STATE)
    for name in names:
        path = staging / name
        if path.is_dir():
            sync_directory(path)
        path.rename(folder / name)
    sync_directory(folder)
