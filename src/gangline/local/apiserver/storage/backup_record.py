"""The records of the last backup and the last restore, in the data folder."""

from datetime import datetime
from pathlib import Path

import msgspec

from gangline.local.apiserver.storage.durable_files import write_durably

LAST_BACKUP = "last-backup.json"
LAST_RESTORE = "last-restore.json"


class BackupRecord(msgspec.Struct, frozen=True):
    """A backup: its archive, the time of the backup or restore, and a revision."""

    file: str
    at: datetime
    revision: int
    """The revision of the backup, or the one that the cluster continued from after the restore."""


def write_record(path: Path, record: BackupRecord) -> None:
    write_durably(path, msgspec.json.encode(record))


def read_record(path: Path) -> BackupRecord | None:
    """Return the record; None if there is none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=BackupRecord)
    except (OSError, msgspec.DecodeError):
        return None
