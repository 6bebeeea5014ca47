"""Where checkpoints are stored: a local folder, or any store that fsspec supports.

A local folder (also NFS) commits by renaming a folder, after all its content is on disk. A store
without renames commits by writing the manifest last: a step without it does not exist. The manifest
is written only if none exists (``If-None-Match: *`` in S3, generation 0 in Google's), so that of
two savers which write the same step concurrently only one commits it.
"""

import contextlib
import errno
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from gangline.elastic.checkpoint.errors import (
    CheckpointError,
    CorruptError,
    StepTakenError,
    StorageError,
)
from gangline.elastic.checkpoint.failpoints import pass_failpoint
from gangline.elastic.checkpoint.format.manifest import (
    MANIFEST,
    decode_manifest,
    parse_partial_folder,
    parse_step_folder,
    partial_folder,
    step_folder,
)


class LocalTarget:
    """A folder of a file system with renames. Raises ``OSError``; its paths are relative."""

    def __init__(self, folder: str) -> None:
        self.root = Path(folder)

    def staging_folder(self, step: int, plan: str) -> str:
        """Return the folder in which a step is written."""
        return partial_folder(step, plan)

    def begin(self, step: int, plan: str) -> None:
        """Announce a step; each rank calls it before its first file.

        Nothing to do here: the same step of another plan stays until this one replaces it.
        """

    @contextlib.contextmanager
    def create(self, path: str) -> Iterator[IO[bytes]]:
        """Open a file to write to; it is on disk when the block ends."""
        full_path = self.root / path
        full_path.parent.mkdir(parents=True, exist_ok=True)
        with open(full_path, "wb", buffering=0) as stream:
            try:
                yield stream
                os.fsync(stream.fileno())
            except OSError:
                full_path.unlink(missing_ok=True)  # a partial file would keep a full disk full
                raise

    def put(self, path: str, data: bytes, durable: bool = True) -> None:
        """Write a small file atomically; with ``durable`` it is on disk on return."""
        temporary = f"{path}.{os.getpid()}.new"
        if durable:
            with self.create(temporary) as stream:
                stream.write(data)
        else:
            (self.root / temporary).write_bytes(data)
        pass_failpoint("put-written")
        (self.root / temporary).rename(self.root / path)

    def read(self, path: str) -> bytes:
        return (self.root / path).read_bytes()

    def open(self, path: str) -> IO[bytes]:
        return open(self.root / path, "rb", buffering=0)

    def list_names(self, folder: str) -> list[str]:
        """List a folder; empty if it does not exist."""
        try:
            return sorted(os.listdir(self.root / folder))
        except FileNotFoundError:
            return []

    def list_unfinished(self) -> list[tuple[int, str]]:
        """Return the steps that are not committed, and their folders."""
        return [
            (partial[0], name)
            for name in self.list_names("")
            if (partial := parse_partial_folder(name))
        ]

    def idle_s(self, folder: str) -> float | None:
        """Return the seconds since something was written to a folder; ``None`` if not known."""
        try:
            paths = [self.root / folder, *(self.root / folder).iterdir()]
            return time.time() - max(path.stat().st_mtime for path in paths)
        except FileNotFoundError:
            return None

    def commit(self, step: int, plan: str, manifest: bytes) -> None:
        """Commit the step. Repeating it does no harm."""
        partial, final = self.root / partial_folder(step, plan), self.root / step_folder(step)
        self.put(f"{partial.name}/{MANIFEST}", manifest)
        _sync_folder(partial)
        pass_failpoint("commit-manifest")
        if final.exists():
            self.remove(final.name)  # the same step, saved again after a restart from an older step
        partial.rename(final)
        pass_failpoint("commit-renamed")
        _sync_folder(self.root)

    def remove(self, folder: str) -> None:
        """Delete a folder; it is renamed first, because deleting takes time."""
        trash = self.root / f".trash-{os.getpid()}-{folder.lstrip('.')}"
        with contextlib.suppress(FileNotFoundError):
            (self.root / folder).rename(trash)
            if trash.is_dir():
                shutil.rmtree(trash, ignore_errors=True)
            else:
                trash.unlink()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class RemoteTarget:
    """A store that fsspec supports: objects appear complete when closed; nothing is renamed."""

    def __init__(self, filesystem: Any, root: str) -> None:
        self.files, self.root = filesystem, root.rstrip("/")

    def _at(self, path: str) -> str:
        return f"{self.root}/{path}" if path else self.root

    def staging_folder(self, step: int, plan: str) -> str:
        """Return the final folder of the step: the manifest makes it valid."""
        del plan
        return step_folder(step)

    def begin(self, step: int, plan: str) -> None:
        """Remove the manifest of the same step of another plan, saved before a restart.

        Its objects are about to be overwritten: it would be damaged, and would block this commit.
        """
        path = _manifest_path(step)
        with contextlib.suppress(FileNotFoundError):
            if self._plan_at(path) != plan:
                with wrapped_store_errors(self.root):
                    self.files.rm(self._at(path))

    @contextlib.contextmanager
    def create(self, path: str) -> Iterator[IO[bytes]]:
        with wrapped_store_errors(self.root):
            self.files.makedirs(self._at(path).rpartition("/")[0], exist_ok=True)
            with self.files.open(self._at(path), "wb") as stream:
                yield stream

    def put(self, path: str, data: bytes, durable: bool = True) -> None:
        del durable  # object stores are always durable
        with self.create(path) as stream:
            stream.write(data)

    def read(self, path: str) -> bytes:
        with self.open(path) as stream:
            return stream.read()

    def _plan_at(self, path: str) -> str | None:
        """Return the plan of the manifest at this path; None if it is damaged."""
        with wrapped_store_errors(self.root):
            self.files.invalidate_cache()  # a cached listing may lack it
        try:
            return decode_manifest(self.read(path)).plan
        except CorruptError:
            return None

    @contextlib.contextmanager
    def open(self, path: str) -> Iterator[IO[bytes]]:
        with wrapped_store_errors(self.root), self.files.open(self._at(path), "rb") as stream:
            yield stream

    def list_names(self, folder: str) -> list[str]:
        with wrapped_store_errors(self.root):
            self.files.invalidate_cache()
            try:
                paths = self.files.ls(self._at(folder), detail=False)
            except FileNotFoundError:
                return []
        return sorted(str(name).rstrip("/").rpartition("/")[2] for name in paths)

    def list_unfinished(self) -> list[tuple[int, str]]:
        """Return the steps without a manifest, and their folders."""
        return [
            (step, name)
            for name in self.list_names("")
            if (step := parse_step_folder(name)) is not None
            and MANIFEST not in self.list_names(name)
        ]

    def idle_s(self, folder: str) -> float | None:
        del folder
        return None

    def commit(self, step: int, plan: str, manifest: bytes) -> None:
        """Commit the step by writing its manifest, the last of its objects.

        If a manifest exists already, its plan decides: stores report that in different ways, and
        the reply to an earlier attempt may have been lost after the manifest was written. Raises
        StepTakenError: it is of another plan.
        """
        path = _manifest_path(step)
        try:
            with wrapped_store_errors(self.root):
                self.files.pipe_file(self._at(path), manifest, mode="create")
        except (OSError, StorageError) as error:
            try:
                existing = self._plan_at(path)
            except FileNotFoundError:
                if not _knows_no_conditions(error):
                    raise error from None
                self.put(path, manifest)
                existing = plan
            if existing != plan:
                raise StepTakenError(
                    f"step {step} in {self.root} was committed by another saver meanwhile: "
                    "each job needs a folder of its own"
                ) from error
        pass_failpoint("commit-manifest")

    def remove(self, folder: str) -> None:
        """Delete a prefix, the manifest first: a step without it does not exist."""
        with wrapped_store_errors(self.root):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                self.files.rm(self._at(f"{folder}/{MANIFEST}"))
            with contextlib.suppress(FileNotFoundError):
                self.files.rm(self._at(folder), recursive=True)


StorageTarget = LocalTarget | RemoteTarget


def _manifest_path(step: int) -> str:
    return f"{step_folder(step)}/{MANIFEST}"


def _knows_no_conditions(error: Exception) -> bool:
    """Return whether the store or its client library does not support conditional writes."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOSYS
    cause = error.__cause__
    return isinstance(cause, TypeError) or type(cause).__name__ == "ParamValidationError"


@contextlib.contextmanager
def wrapped_store_errors(place: str) -> Iterator[None]:
    """Turn exceptions of a store's client library into ``StorageError``.

    They have no common base class (botocore, aiohttp, Google and Azure each have their own), and
    none of them may end the saver, or a training that could continue without storage.
    """
    try:
        yield
    except (OSError, CheckpointError):
        raise
    except Exception as error:
        raise StorageError(f"{place}: {type(error).__name__}: {error}") from error


def open_target(address: str, options: Mapping[str, str] | None = None) -> StorageTarget:
    """Open the target that a folder or URL names.

    Raises:
        StorageError: the URL's scheme needs a package that is not installed, or the store refused.
        OSError: the store cannot be reached.
    """
    scheme, separator, rest = address.partition("://")
    if not separator:
        return LocalTarget(address)
    if scheme == "file":
        return LocalTarget(rest)
    try:
        fsspec: Any = import_module("fsspec")
        with wrapped_store_errors(address):
            filesystem, root = fsspec.core.url_to_fs(address, **dict(options or {}))
    except (ImportError, ValueError) as error:
        raise StorageError(f"{address} cannot be used: {error}") from error
    return RemoteTarget(filesystem, root)
