"""The archive of a backup: ``manifest.json``, then the files that it lists, as ``tar.gz``.

The manifest comes first and has size and SHA-256 of every other file, so that a truncated, changed
or foreign archive is refused before anything is replaced. Names are a closed set: an archive cannot
place a file elsewhere.
"""

import contextlib
import hashlib
import io
import os
import re
import tarfile
import zlib
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import IO

import msgspec

from gangline.local.apiserver.storage.durable_files import publish_new
from gangline.local.apiserver.storage.encryption import GENERATED_FILE
from gangline.local.directory import ClusterError

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
    """Size and checksum of a file in the archive."""

    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True):
    """The description of a backup."""

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


def write_archive(target: Path, manifest: Manifest, files: Mapping[str, Path]) -> None:
    """Write the archive, readable by its owner only; it appears under its name when complete.

    Raises:
        BackupError: the target exists.
        OSError: it cannot be written.
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


def unpack_archive(archive_path: Path, folder: Path) -> Manifest:
    """Unpack an archive into an empty folder, and check every file.

    Raises:
        BackupError: it is no backup, is incomplete, was changed, or has a newer format.
    """
    try:
        with tarfile.open(archive_path, mode="r:gz") as archive:
            manifest = _read_manifest(archive, archive_path)
            found = set()
            for entry in archive:
                if entry.name != MANIFEST:
                    _extract(archive, entry, manifest, folder, archive_path)
                    found.add(entry.name)
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise BackupError(f"cannot read {archive_path}: {error.strerror}") from error
        raise damaged_archive(archive_path, str(error)) from error
    if missing := manifest.files.keys() - found:
        raise damaged_archive(archive_path, f"{min(missing)} is missing")
    return manifest


def _read_manifest(archive: tarfile.TarFile, path: Path) -> Manifest:
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
        return msgspec.json.decode(raw, type=Manifest)
    except msgspec.DecodeError as error:
        raise damaged_archive(path, f"{MANIFEST}: {error}") from error


def _extract(
    archive: tarfile.TarFile,
    entry: tarfile.TarInfo,
    manifest: Manifest,
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
