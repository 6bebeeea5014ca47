"""Restores a backup as the state of a stopped cluster.

Everything is unpacked and checked first, in a folder beside the present state. Then the present
files are moved aside, and the new ones into place, the state file last. While the folder
``restoring`` exists, the cluster does not start: a restore that was interrupted is repeated.

Revisions never go back: clients that know a later state than the backup's would miss changes. The
restored state gets a revision far above any that the cluster has used, and no history, so that all
watches start again, as with ``etcdutl snapshot restore --bump-revision --mark-compacted``.
"""

import contextlib
import shutil
import sqlite3
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from gangline.local.apiserver.storage.backup_record import (
    LAST_BACKUP,
    LAST_RESTORE,
    BackupRecord,
    read_record,
    write_record,
)
from gangline.local.apiserver.storage.durability import Durability
from gangline.local.apiserver.storage.durable_files import sync_directory
from gangline.local.apiserver.storage.encryption import (
    GENERATED_FILE,
    EncryptionKeyError,
    EncryptionKeys,
    read_key_file,
)
from gangline.local.apiserver.storage.sqlite import DatabaseError, StateDatabase
from gangline.local.apiserver.storage.state_file import newest_revision, wal_path
from gangline.local.backups.archive import (
    IMAGE_MAP,
    SETTINGS,
    STATE,
    BackupError,
    Manifest,
    damaged_archive,
    unpack_archive,
)
from gangline.local.directory import RESTORING, ClusterDirectory, ClusterLock

REVISION_BUMP = 1_000_000_000
"""As in etcd's guide: more than a cluster writes between a backup and its restore."""

REPLACED = (STATE, f"{STATE}-wal", "pki", SETTINGS, IMAGE_MAP, GENERATED_FILE)


@dataclass(frozen=True, slots=True)
class Restored:
    """What was restored."""

    manifest: Manifest
    revision: int
    """The revision that the cluster continues from."""

    replaced: Path | None
    """The folder with the former state; None if there was none."""

    settings: bytes
    """The encoded settings of the cluster's last start; empty if they are not known."""

    needs_key: bool
    """True if the cluster starts only with ``--encryption-key``."""


def restore_backup(
    archive: Path, home: ClusterDirectory, *, force: bool = False, key_file: Path | None = None
) -> Restored:
    """Make the state of a backup that of a cluster, which must not run.

    Raises:
        ClusterAlreadyRunning: the cluster runs.
        ClusterError: the backup cannot be used, or the cluster has a state and ``force`` is not
            set. The state is unchanged.
    """
    home.prepare()
    with ClusterLock(home):
        if (home.folder / STATE).exists() and not force:
            raise BackupError(
                f"cluster {home.name} has a state in {home.folder}: replace it with --force "
                "(it is moved aside), or restore to another cluster with --name"
            )
        staging = home.folder / RESTORING
        prepared = home.folder / f"{RESTORING}.new"
        shutil.rmtree(prepared, ignore_errors=True)
        prepared.mkdir(mode=0o700)
        try:
            manifest = unpack_archive(archive, prepared)
            own_key = home.folder / GENERATED_FILE
            keys = _keys([prepared / GENERATED_FILE, own_key], key_file)
            revision = _check_and_bump(archive, prepared / STATE, manifest, keys, home.folder)
        except BaseException:
            shutil.rmtree(prepared, ignore_errors=True)
            raise
        # From here on, an interrupted restore must be repeated.
        shutil.rmtree(staging, ignore_errors=True)
        prepared.rename(staging)
        sync_directory(home.folder)
        replaced = _move_aside(home.folder, keep_key=not (staging / GENERATED_FILE).exists())
        _move_in(staging, home.folder)
        record = BackupRecord(str(archive.absolute()), datetime.now(UTC), revision)
        write_record(home.folder / LAST_RESTORE, record)
        staging.rmdir()
        sync_directory(home.folder)
        needs_key = not set(manifest.encrypted_with) <= _keys([own_key], None).keys.keys()
        recorded = home.folder / SETTINGS
        settings = recorded.read_bytes() if recorded.exists() else b""
        return Restored(manifest, revision, replaced, settings, needs_key)


def _keys(generated: list[Path], key_file: Path | None) -> EncryptionKeys:
    found: dict[str, bytes] = {}
    try:
        for path in [*([key_file] if key_file else []), *filter(Path.exists, generated)]:
            for name, key in read_key_file(path).items():
                found.setdefault(name, key)
    except EncryptionKeyError as error:
        raise BackupError(str(error)) from error
    return EncryptionKeys(found, "the key files" if found else "")


def _check_and_bump(
    archive: Path, state: Path, manifest: Manifest, keys: EncryptionKeys, folder: Path
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
    found = [0]
    for name in (LAST_BACKUP, LAST_RESTORE):
        record = read_record(folder / name)
        if record is not None:
            found.append(record.revision)
    with contextlib.suppress(sqlite3.Error, OSError):  # it is damaged: that is why it is replaced
        found.append(newest_revision(folder / STATE))
    return found


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
