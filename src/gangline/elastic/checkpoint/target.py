"""Where checkpoints are kept: a folder of this machine, or anything that fsspec reaches.

A local folder (also NFS) commits by renaming a folder, after everything in it is on the disk. A
store without renames commits by the manifest, which is put last: a step without it does not exist.
It is put only where none is (``If-None-Match: *`` in S3, generation 0 in Google's), so that of two
savers that make the same step at once only one commits it.
"""

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Protocol

from gangline.elastic.checkpoint.errors import (
    CheckpointError,
    CorruptError,
    StepTakenError,
    StorageError,
)
from gangline.elastic.checkpoint.failpoints import reach
from gangline.elastic.checkpoint.manifest import (
    MANIFEST,
    partial_name,
    partial_of,
    read_manifest,
    step_name,
    step_of,
)


class Target(Protocol):
    """What checkpoints are written to. Paths are relative to it. Failures raise ``OSError``."""

    def partial(self, step: int, plan: str) -> str:
        """The folder in which a step is made."""

    def begin(self, step: int, plan: str) -> None:
        """Say that the step is going to be made; before the first of its files, by each rank."""

    def create(self, path: str) -> contextlib.AbstractContextManager[IO[bytes]]:
        """A file to write to, which is on the disk when the block ends."""

    def put(self, path: str, data: bytes, durable: bool = True) -> None:
        """Write a small file at once or not at all; on the disk, if ``durable``, on return."""

    def read(self, path: str) -> bytes:
        """A whole file."""

    def open(self, path: str) -> contextlib.AbstractContextManager[IO[bytes]]:
        """A file to read from."""

    def names(self, folder: str) -> list[str]:
        """What is in a folder; nothing when it does not exist."""

    def unfinished(self) -> list[tuple[int, str]]:
        """Steps that are not committed, and the folders in which they are made."""

    def commit(self, step: int, plan: str, manifest: bytes) -> None:
        """Make the step exist. A second time is no harm.

        Raises:
            StepTakenError: another plan's was committed since ``begin``.
        """

    def remove(self, folder: str) -> None:
        """Take away a folder with all that is in it."""


class LocalTarget:
    """A folder of a file system that renames."""

    def __init__(self, folder: str) -> None:
        self.root = Path(folder)

    def partial(self, step: int, plan: str) -> str:
        """The folder in which a step is made."""
        return partial_name(step, plan)

    def begin(self, step: int, plan: str) -> None:
        """Nothing: the same step of another plan stays until this one takes its place."""

    @contextlib.contextmanager
    def create(self, path: str) -> Iterator[IO[bytes]]:
        """A file to write to, which is on the disk when the block ends."""
        whole = self.root / path
        whole.parent.mkdir(parents=True, exist_ok=True)
        with open(whole, "wb", buffering=0) as stream:
            try:
                yield stream
                os.fsync(stream.fileno())
            except OSError:
                whole.unlink(missing_ok=True)  # half a file would keep a full disk full
                raise

    def put(self, path: str, data: bytes, durable: bool = True) -> None:
        """Write a small file at once or not at all; on the disk, if ``durable``, on return."""
        fresh = f"{path}.{os.getpid()}.new"
        if durable:
            with self.create(fresh) as stream:
                stream.write(data)
        else:
            (self.root / fresh).write_bytes(data)
        reach("put-written")
        (self.root / fresh).rename(self.root / path)

    def read(self, path: str) -> bytes:
        """A whole file."""
        return (self.root / path).read_bytes()

    def open(self, path: str) -> IO[bytes]:
        """A file to read from."""
        return open(self.root / path, "rb", buffering=0)

    def names(self, folder: str) -> list[str]:
        """What is in a folder; nothing when it does not exist."""
        try:
            return sorted(os.listdir(self.root / folder))
        except FileNotFoundError:
            return []

    def unfinished(self) -> list[tuple[int, str]]:
        """Steps that are not committed, and the folders in which they are made."""
        return [(found[0], name) for name in self.names("") if (found := partial_of(name))]

    def commit(self, step: int, plan: str, manifest: bytes) -> None:
        """Make the step exist. A second time is no harm."""
        partial, final = self.root / partial_name(step, plan), self.root / step_name(step)
        self.put(f"{partial.name}/{MANIFEST}", manifest)
        _sync_folder(partial)
        reach("commit-manifest")
        if final.exists():
            self.remove(final.name)  # the same step, saved again after a restart from an older one
        partial.rename(final)
        reach("commit-renamed")
        _sync_folder(self.root)

    def remove(self, folder: str) -> None:
        """Take away a folder with all that is in it; under another name first, as it takes time."""
        trash = self.root / f".trash-{os.getpid()}-{folder.lstrip('.')}"
        with contextlib.suppress(FileNotFoundError):
            (self.root / folder).rename(trash)
            shutil.rmtree(trash, ignore_errors=True)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class RemoteTarget:
    """A store that fsspec reaches: objects appear whole when closed; nothing is renamed."""

    def __init__(self, filesystem: Any, root: str) -> None:
        self.files, self.root = filesystem, root.rstrip("/")

    def _at(self, path: str) -> str:
        return f"{self.root}/{path}" if path else self.root

    def partial(self, step: int, plan: str) -> str:
        """The folder in which a step is made: at once the last one, made valid by its manifest."""
        del plan
        return step_name(step)

    def begin(self, step: int, plan: str) -> None:
        """Withdraw the same step of another plan, made before a restart from an older one.

        Its objects are about to be overwritten: it would be damaged, and in the way of this one.
        """
        path = _manifest_path(step)
        with contextlib.suppress(FileNotFoundError):
            if self._plan_at(path) != plan:
                with speaking_to(self.root):
                    self.files.rm(self._at(path))

    @contextlib.contextmanager
    def create(self, path: str) -> Iterator[IO[bytes]]:
        """A file to write to, which is there when the block ends."""
        with speaking_to(self.root):
            self.files.makedirs(self._at(path).rpartition("/")[0], exist_ok=True)
            with self.files.open(self._at(path), "wb") as stream:
                yield stream

    def put(self, path: str, data: bytes, durable: bool = True) -> None:
        """Write a small object."""
        del durable  # stores know no other way
        with self.create(path) as stream:
            stream.write(data)

    def read(self, path: str) -> bytes:
        """A whole object."""
        with self.open(path) as stream:
            return stream.read()

    def _plan_at(self, path: str) -> str | None:
        """Whose manifest lies there now; nobody's when it is damaged."""
        with speaking_to(self.root):
            self.files.invalidate_cache()  # a listing of before may lack it
        try:
            return read_manifest(self.read(path)).plan
        except CorruptError:
            return None

    @contextlib.contextmanager
    def open(self, path: str) -> Iterator[IO[bytes]]:
        """An object to read from."""
        with speaking_to(self.root), self.files.open(self._at(path), "rb") as stream:
            yield stream

    def names(self, folder: str) -> list[str]:
        """What is under a prefix."""
        with speaking_to(self.root):
            self.files.invalidate_cache()
            try:
                found = self.files.ls(self._at(folder), detail=False)
            except FileNotFoundError:
                return []
        return sorted(str(name).rstrip("/").rpartition("/")[2] for name in found)

    def unfinished(self) -> list[tuple[int, str]]:
        """Steps without a manifest, and where their objects are."""
        return [
            (step, name)
            for name in self.names("")
            if (step := step_of(name)) is not None and MANIFEST not in self.names(name)
        ]

    def commit(self, step: int, plan: str, manifest: bytes) -> None:
        """Make the step exist by putting its manifest, the last of its objects.

        Where one is already, it decides: stores have several words for that, and an answer may
        have been lost after the manifest arrived.

        Raises:
            StepTakenError: it is another plan's.
        """
        path = _manifest_path(step)
        try:
            with speaking_to(self.root):
                self.files.pipe_file(self._at(path), manifest, mode="create")
        except (OSError, StorageError) as error:
            try:
                found = self._plan_at(path)
            except FileNotFoundError:
                if not _knows_no_conditions(error):
                    raise error from None
                self.put(path, manifest)
                found = plan
            if found != plan:
                raise StepTakenError(
                    f"step {step} in {self.root} was committed by another saver meanwhile: "
                    "each job needs a folder of its own"
                ) from error
        reach("commit-manifest")

    def remove(self, folder: str) -> None:
        """Take away what is under a prefix, the manifest first: half a step is no step."""
        with speaking_to(self.root):
            with contextlib.suppress(FileNotFoundError):
                self.files.rm(self._at(f"{folder}/{MANIFEST}"))
            with contextlib.suppress(FileNotFoundError):
                self.files.rm(self._at(folder), recursive=True)


def _manifest_path(step: int) -> str:
    return f"{step_name(step)}/{MANIFEST}"


def _knows_no_conditions(error: Exception) -> bool:
    """Whether a store, or the library that speaks to it, cannot put where nothing is."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOSYS
    cause = error.__cause__
    return isinstance(cause, TypeError) or type(cause).__name__ == "ParamValidationError"


@contextlib.contextmanager
def speaking_to(place: str) -> Iterator[None]:
    """Turn what a store's own library raises into ``StorageError``.

    Such errors have no common root (those of botocore, aiohttp, Google and Azure are each their
    own), and none of them may end the saver or a training that could go on without storage.
    """
    try:
        yield
    except (OSError, CheckpointError):
        raise
    except Exception as error:
        raise StorageError(f"{place}: {type(error).__name__}: {error}") from error


def open_target(address: str, options: Mapping[str, str] | None = None) -> Target:
    """The target that a folder or URL names.

    Raises:
        StorageError: the URL's kind needs a package that is not installed, or its store said no.
        OSError: the store cannot be reached.
    """
    scheme, separator, rest = address.partition("://")
    if not separator:
        return LocalTarget(address)
    if scheme == "file":
        return LocalTarget(rest)
    try:
        fsspec: Any = import_module("fsspec")
        with speaking_to(address):
            filesystem, root = fsspec.core.url_to_fs(address, **dict(options or {}))
    except (ImportError, ValueError) as error:
        raise StorageError(f"{address} cannot be used: {error}") from error
    return RemoteTarget(filesystem, root)
