"""The mark of a complete fetch: a restart, or a second job with the same claim, fetches nothing."""

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from gangline.initializer.files import SourceFile, make_durable, own_folder
from gangline.initializer.settings import InitializerSettings

_MARK, _LOCK = "complete.json", "lock"


class CompletionMark(msgspec.Struct, frozen=True):
    """What a folder contains."""

    uri: str
    ignored: tuple[str, ...]
    endpoint: str
    revision: str
    """The commit of a repository; empty if the source has none."""
    files: tuple[SourceFile, ...]


def read_mark(settings: InitializerSettings) -> CompletionMark | None:
    """Return the mark of these settings, if its files still exist with their sizes."""
    try:
        text = (own_folder(settings.output) / _MARK).read_bytes()
        mark = msgspec.json.decode(text, type=CompletionMark)
    except (OSError, msgspec.MsgspecError):
        return None
    if (mark.uri, mark.ignored, mark.endpoint) != (
        settings.uri,
        settings.ignored,
        settings.endpoint,
    ):
        return None
    return mark if all(_exists(settings.output, file) for file in mark.files) else None


def write_mark(settings: InitializerSettings, revision: str, files: list[SourceFile]) -> None:
    """Write the mark; the files are on the disk."""
    mark = CompletionMark(settings.uri, settings.ignored, settings.endpoint, revision, tuple(files))
    folder = own_folder(settings.output)
    temporary = folder / f"{_MARK}.part"
    temporary.write_bytes(msgspec.json.encode(mark))
    make_durable(temporary)
    temporary.replace(folder / _MARK)
    make_durable(folder)


def remove_mark(settings: InitializerSettings) -> None:
    """Remove a mark of other settings, whose files are about to change."""
    (own_folder(settings.output) / _MARK).unlink(missing_ok=True)


@contextlib.contextmanager
def locked(output: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock of an output folder; ``on_wait`` is called if another process has it.

    The file system must support ``flock``; on one that does not, nothing is locked.
    """
    folder = own_folder(output)
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL):
                raise
        yield
    finally:
        os.close(descriptor)


def _exists(output: Path, file: SourceFile) -> bool:
    try:
        return (output / file.path).stat().st_size == file.size
    except OSError:
        return False
