"""Files of a source: which are fetched, and whether a fetched one is complete.

A fetch that was interrupted leaves complete files at their places and incomplete ones in a folder
of the initializer. The next fetch continues the latter, and recognises the former by size and
digest, or, if the source has no digest, by an empty file that stands for this version of it.
"""

import hashlib
import os
import stat
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

import msgspec

from gangline.initializer.errors import InitializerError

_CHUNK_BYTES = 1 << 20
_OWN_FOLDER = ".gangline"
"""In the output folder: the mark, the lock, and files that are not complete."""


class Digest(msgspec.Struct, frozen=True):
    """A checksum that the source gives for a file."""

    algorithm: str
    """``md5``, ``sha256``, or ``git-sha1``: that of a blob in a Git repository."""
    value: str
    """In hexadecimal digits, lower case."""


class SourceFile(msgspec.Struct, frozen=True):
    """A file of a source."""

    path: str
    """Relative to the output folder, with slashes."""
    size: int
    """In bytes."""
    digest: Digest | None = None
    version: str = ""
    """Differs between two contents, such as an ETag; empty if the source has none."""


def own_folder(output: Path) -> Path:
    """Return the folder of the initializer's own files, below the output folder."""
    return output / _OWN_FOLDER


def partial_folder(output: Path) -> Path:
    """Return the folder of files that are not complete yet."""
    return own_folder(output) / "partial"


def partial_file(output: Path, file: SourceFile) -> Path:
    """Return where a file is written before it is complete; another version has another place."""
    partial_folder(output).mkdir(parents=True, exist_ok=True)
    (output / file.path).parent.mkdir(parents=True, exist_ok=True)
    return _partial_path(output, file)


def check_path(path: str, field: str) -> str:
    """Return a path that names a file below the output folder.

    Raises:
        InitializerError: it leads elsewhere, or to the initializer's own files.
    """
    parts = path.split("/")
    if (
        any(part in ("", ".", "..") for part in parts)
        or "\0" in path
        or parts[0] == _OWN_FOLDER
        or PurePosixPath(path).is_absolute()
    ):
        problem = f"the source has a file {path!r}, which cannot be written below a folder"
        raise InitializerError(field, problem, "exclude it by IGNORE_PATTERNS, or rename it")
    return path


def select_paths(
    paths: Iterable[str], ignored: Sequence[str], allowed: Sequence[str] = ()
) -> list[str]:
    """Return the paths that are fetched.

    Args:
        paths: all paths of a source.
        ignored: patterns of paths that are not fetched; a pattern that ends with a slash names a
            folder.
        allowed: patterns of paths that are fetched; empty: all.
    """
    return [
        path
        for path in paths
        if (not allowed or _matches(path, allowed)) and not _matches(path, ignored)
    ]


def is_complete(target: Path, file: SourceFile) -> bool:
    """Return whether a file has the size and the digest that its source gives."""
    try:
        status = target.stat(follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return False
    if not stat.S_ISREG(status.st_mode) or status.st_size != file.size:
        return False
    return file.digest is None or compute_digest(target, file.digest.algorithm) == file.digest.value


def record_fetched(output: Path, file: SourceFile) -> None:
    """Record that this version of a file is complete, for a fetch that is interrupted later."""
    if file.digest is None:
        _fetched_marker(output, file).touch()


def is_fetched(output: Path, file: SourceFile) -> bool:
    """Return whether an interrupted fetch has completed this version of a file."""
    if file.digest is None and not _fetched_marker(output, file).exists():
        return False
    return is_complete(output / file.path, file)


def _fetched_marker(output: Path, file: SourceFile) -> Path:
    return _partial_path(output, file).with_suffix(".fetched")


def _partial_path(output: Path, file: SourceFile) -> Path:
    key = f"{file.path}\0{file.version}\0{file.size}"
    return partial_folder(output) / hashlib.sha256(key.encode()).hexdigest()


def compute_digest(path: Path, algorithm: str) -> str:
    """Return the digest of a file in hexadecimal digits."""
    if algorithm == "git-sha1":
        digest = hashlib.sha1(usedforsecurity=False)
        digest.update(f"blob {path.stat().st_size}\0".encode())
    else:
        digest = hashlib.new(algorithm, usedforsecurity=algorithm == "sha256")
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def make_durable(path: Path) -> None:
    """Write a file or folder to the disk, before the mark says that it is complete."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def format_bytes(count: float) -> str:
    """Return a number of bytes as text: ``3.4 GiB``."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def _matches(path: str, patterns: Iterable[str]) -> bool:
    name = path.rpartition("/")[2]
    return any(
        path.startswith(pattern)
        if pattern.endswith("/")
        else fnmatchcase(path, pattern) or fnmatchcase(name, pattern)
        for pattern in patterns
    )
