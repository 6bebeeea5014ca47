"""Packs a local folder for upload with a job: ``--sync-mode local``."""

import fnmatch
import gzip
import hashlib
import io
import os
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gangline.cli.errors import CommandError
from gangline.cli.exit_codes import ExitCode

IGNORE_FILES = (".ganglineignore", ".arenaignore")
ALWAYS_IGNORED = (".git", "__pycache__", ".venv", ".mypy_cache", ".pytest_cache", "*.pyc")
PART_BYTES = 700_000
"""Size of one ConfigMap's part: base64 keeps it below the limit of 1 MiB for an object."""
MAX_BYTES = 7_000_000
"""Limit of the packed size. Larger code belongs in an image, a repository or a volume."""
MAX_UNPACKED_BYTES = 200_000_000


@dataclass(frozen=True, slots=True)
class PackedCode:
    """A packed folder."""

    name: str
    parts: list[bytes]
    sha256: str
    files: int
    commit: str = ""
    """Commit of the git repository that contains the folder; empty without a repository."""
    dirty: bool = False

    def annotations(self) -> dict[str, str]:
        """Return annotations of the job that identify its code."""
        found = {"gangline.dev/code-sha256": self.sha256}
        if self.commit:
            found |= {
                "gangline.dev/git-commit": self.commit,
                "gangline.dev/git-dirty": str(self.dirty).lower(),
            }
        return found


def pack_code(folder: Path) -> PackedCode:
    """Pack a folder; equal files give equal bytes.

    Raises:
        CommandError: the folder cannot be read, or is too large to be sent.
    """
    if not folder.is_dir():
        raise _refused(f"--sync-source {str(folder)!r} is not a folder", "Give an existing folder.")
    ignored = _ignored(folder)
    found = list(_files(folder, ignored))
    size = sum(path.stat().st_size for path in found)
    if size > MAX_UNPACKED_BYTES:
        raise _too_large(folder, size)
    packed = _tar(folder, found)
    if len(packed) > MAX_BYTES:
        raise _too_large(folder, len(packed))
    commit, dirty = _git_state(folder)
    return PackedCode(
        name=folder.resolve().name or "code",
        parts=[packed[at : at + PART_BYTES] for at in range(0, len(packed), PART_BYTES)],
        sha256=hashlib.sha256(packed).hexdigest(),
        files=len(found),
        commit=commit,
        dirty=dirty,
    )


def _tar(folder: Path, files: Sequence[Path]) -> bytes:
    raw = io.BytesIO()
    # No times and no owners: equal code must give equal bytes.
    with (
        gzip.GzipFile(fileobj=raw, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for path in files:
            entry = archive.gettarinfo(str(path), str(path.relative_to(folder)))
            entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = 0, 0, 0, "", ""
            if entry.isfile():
                with path.open("rb") as content:
                    archive.addfile(entry, content)
            else:
                archive.addfile(entry)
    return raw.getvalue()


def _ignored(folder: Path) -> list[str]:
    patterns = list(ALWAYS_IGNORED)
    for name in IGNORE_FILES:
        path = folder / name
        if path.is_file():
            lines = (line.strip() for line in path.read_text(errors="replace").splitlines())
            patterns += [line for line in lines if line and not line.startswith("#")]
    return patterns


def _files(folder: Path, ignored: Sequence[str]) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        here = Path(root)
        folders[:] = sorted(
            each for each in folders if not _is_ignored(here / each, folder, ignored)
        )
        for name in sorted(names):
            path = here / name
            if (path.is_file() or path.is_symlink()) and not _is_ignored(path, folder, ignored):
                yield path


def _is_ignored(path: Path, folder: Path, patterns: Sequence[str]) -> bool:
    relative = path.relative_to(folder).as_posix()
    for written in patterns:
        pattern = written.rstrip("/")
        if pattern.startswith("/"):
            if fnmatch.fnmatchcase(relative, pattern[1:]):
                return True
        elif fnmatch.fnmatchcase(path.name, pattern) or fnmatch.fnmatchcase(relative, pattern):
            return True
    return False


def _git_state(folder: Path) -> tuple[str, bool]:
    """Return the folder's commit, and whether it has uncommitted changes; empty without git."""
    try:
        commit = _git(folder, "rev-parse", "HEAD")
        return commit, bool(_git(folder, "status", "--porcelain", "--", "."))
    except (OSError, subprocess.SubprocessError):
        return "", False


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    return done.stdout.strip()


def _too_large(folder: Path, size: int) -> CommandError:
    return _refused(
        f"the code in {folder} has {size / 1e6:.1f} MB; at most {MAX_BYTES / 1e6:.0f} MB packed "
        "can be uploaded",
        f"List files to leave out in {folder / IGNORE_FILES[0]}, or use --sync-mode git.",
    )


def _refused(message: str, hint: str) -> CommandError:
    return CommandError(message, hint=hint, code=ExitCode.USAGE)
