"""Container logs: written in the CRI format, read as ``kubectl logs`` does, archived for jobs.

Each line of a log file is ``TIME STREAM TAG TEXT``: the time of the write, ``stdout`` or
``stderr``, ``F`` for a full line or ``P`` for a partial one, and the bytes as received. A file
above the maximum size is renamed to a name with its time; the oldest renamed file is removed.

Kubernetes deletes logs with their pod. Here those of a job stay readable after its pods were
deleted or replaced: a client names the pods' owner. The oldest pods are removed first.

    kept-logs/POD_UID/pod.json                 metadata of the pod, its containers and their ends
    kept-logs/POD_UID/CONTAINER/NUMBER.log     the logs, as before the deletion
"""

import asyncio
import contextlib
import json
import logging
import os
import shutil
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from gangline.api.core.pod import Pod
from gangline.local.kubelet.files.private import open_regular
from gangline.local.kubelet.volumes import PodFolders

log = logging.getLogger(__name__)

MOST_PODS = 500
"""The maximum number of pods on a node; the pods that were deleted first are removed first."""
MOST_BYTES = 256 << 20
_RECORD_FILE = "pod.json"


@dataclass(frozen=True, slots=True)
class ArchivedLogs:
    folder: Path
    pod_record: dict[str, Any]
    """Its metadata, the names of its node and containers, and its status, as in the object."""
    deleted_ns: int
    """The time of its deletion."""

    @property
    def name(self) -> str:
        return str(self.pod_record["metadata"]["name"])

    def runs(self, container: str) -> list[Path]:
        """The logs of a container's runs in order; of the first container if ``container`` is
        empty.
        """
        spec = self.pod_record["spec"]
        names = [
            spec_container["name"]
            for spec_container in (*spec["containers"], *spec["initContainers"])
        ]
        if container not in {"", *names}:
            return []
        folder = self.folder / (container or names[0])
        logs = [path for path in folder.glob("*.log") if path.stem.isdecimal()]
        return sorted(logs, key=lambda path: int(path.stem))


def archived_run_log(
    archived: Iterable[ArchivedLogs], pod: str, container: str, *, previous: bool = False
) -> Path | None:
    """The log of the last run of a container of the pods with this name, or of the run before it.

    Of the archived pods, oldest first, earlier ones with the same name count too: before a pod's
    first run comes the last run of the pod that it replaced.
    """
    runs = [
        path for pod_logs in archived if pod_logs.name == pod for path in pod_logs.runs(container)
    ]
    back = 2 if previous else 1
    return runs[-back] if len(runs) >= back else None


def archive_logs(data: Path, folders: PodFolders, pod: Pod) -> None:
    """Archive the logs of a deleted pod if it had a controller; else remove them."""
    if pod.metadata.controller is None or not folders.logs.is_dir():
        shutil.rmtree(folders.logs, ignore_errors=True)
        return
    top = data / "kept-logs"
    with contextlib.suppress(OSError):
        top.mkdir(parents=True, exist_ok=True)
        index = _open_index(top)
        index.prune()
        (folders.logs / _RECORD_FILE).write_text(json.dumps(_pod_record(pod)))
        archived = folders.logs.rename(top / pod.metadata.uid)
        index.add(archived)
    shutil.rmtree(folders.logs, ignore_errors=True)


def _pod_record(pod: Pod) -> dict[str, Any]:
    """The record of a pod, without its environment, which may contain secrets."""
    meta = pod.metadata
    return {
        "metadata": {
            "name": meta.name,
            "namespace": meta.namespace,
            "uid": meta.uid,
            "labels": dict(meta.labels),
            "ownerReferences": msgspec.to_builtins(meta.owner_references),
        },
        "spec": {
            "initContainers": [
                {"name": init_container.name} for init_container in pod.spec.init_containers
            ],
            "containers": [{"name": container.name} for container in pod.spec.containers],
            "nodeName": pod.spec.node_name,
        },
        "status": msgspec.to_builtins(pod.status),
    }


def list_archived_logs(data: Path, namespace: str, owner: str) -> Iterator[ArchivedLogs]:
    """Yield the archived pods of an owner (by its uid), oldest first."""
    for deleted_ns, folder in _by_age(data / "kept-logs"):
        with contextlib.suppress(OSError, ValueError):
            note = json.loads((folder / _RECORD_FILE).read_text())
            meta = note["metadata"]
            owners = {
                owner_reference["uid"]
                for owner_reference in meta["ownerReferences"]
                if owner_reference.get("controller")
            }
            if meta["namespace"] == namespace and owner in owners:
                yield ArchivedLogs(folder, note, deleted_ns)


def _by_age(top: Path) -> list[tuple[int, Path]]:
    ages = []
    for folder in top.iterdir() if top.is_dir() else ():
        with contextlib.suppress(OSError):
            ages.append(((folder / _RECORD_FILE).stat().st_mtime_ns, folder))
    return sorted(ages)


class _ArchiveIndex:
    """The archived pods of one folder with their sizes, oldest first.

    The folder is scanned once. A scan for each deleted pod would take longer with every archived
    one, and delay all pods of the cluster.
    """

    def __init__(self, top: Path) -> None:
        folders = (folder for _, folder in _by_age(top))
        self._pods = deque((folder, _size(folder.rglob("*"))) for folder in folders)
        self._bytes = sum(size for _, size in self._pods)

    def add(self, folder: Path) -> None:
        size = _size(folder.rglob("*"))
        self._pods.append((folder, size))
        self._bytes += size

    def prune(self) -> None:
        while self._pods and (len(self._pods) >= MOST_PODS or self._bytes > MOST_BYTES):
            folder, size = self._pods.popleft()
            self._bytes -= size
            shutil.rmtree(folder, ignore_errors=True)


_open_index = lru_cache(maxsize=64)(_ArchiveIndex)
"""One index per folder: each node has its own, and only its kubelet writes there."""


def _size(files: Iterable[Path]) -> int:
    total = 0
    for file in files:
        with contextlib.suppress(OSError):
            total += file.stat().st_size
    return total


MAX_BYTES = 10 << 20
MAX_FILES = 5
_PIECE_BYTES = 16 << 10
"""A line without an end is written in pieces of this size."""


class LogWriter:
    def __init__(
        self, path: Path, *, max_bytes: int = MAX_BYTES, max_files: int = MAX_FILES
    ) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.lost_bytes = 0
        """The number of bytes that could not be written."""

        self.loss_reason = ""
        """The reason, such as a full disk."""

        self._max_bytes = max_bytes
        self._max_files = max_files
        self._rest = {"stdout": b"", "stderr": b""}
        self._readers: set[asyncio.Future[None]] = set()
        self._fd = -1
        self._size = 0
        self._open()

    @property
    def closed(self) -> bool:
        return self._fd < 0

    def write(self, stream: str, data: bytes) -> None:
        """Append output in pieces of any size."""
        *lines, rest = (self._rest[stream] + data).split(b"\n")
        head = f"{_timestamp()} {stream} ".encode()
        entries = []
        for line in lines:
            pieces = _pieces(line)
            entries += [head + b"P " + piece + b"\n" for piece in pieces[:-1]]
            entries.append(head + b"F " + pieces[-1] + b"\n")
        if len(rest) >= _PIECE_BYTES:
            *pieces, rest = _pieces(rest)
            entries += [head + b"P " + piece + b"\n" for piece in pieces]
        if b"\r" in rest[:-1]:  # a progress bar: its states are written before its line ends
            entries.append(head + b"P " + rest + b"\n")
            rest = b""
        self._rest[stream] = rest
        if entries:
            self._append(b"".join(entries))

    def close(self) -> None:
        """Write the remaining output without a line end, and wake all readers."""
        if self.closed:
            return
        for stream, rest in self._rest.items():
            if rest:
                self._append(f"{_timestamp()} {stream} P ".encode() + rest + b"\n")
        os.close(self._fd)
        self._fd = -1
        self._wake_readers()

    async def changed(self) -> None:
        """Wait until there is more to read, or the log is complete."""
        if self.closed:
            return
        change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._readers.add(change)
        try:
            await change
        finally:
            self._readers.discard(change)

    def _append(self, entries: bytes) -> None:
        if self.closed:
            return
        try:
            self._size += os.write(self._fd, entries)
        except OSError as error:
            self._record_loss(len(entries), error)
            return
        if self._size >= self._max_bytes:
            self._rotate()
        self._wake_readers()

    def _record_loss(self, count: int, error: OSError) -> None:
        if not self.loss_reason:
            self.loss_reason = error.strerror or str(error)
            log.warning("log lost: %s", self.loss_reason, extra={"path": str(self.path)})
        self.lost_bytes += count

    def _wake_readers(self) -> None:
        for reader in self._readers:
            if not reader.done():
                reader.set_result(None)

    def _open(self) -> None:
        # A link or a pipe in place of the log is not written to.
        flags = (
            os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        )
        self._fd = os.open(self.path, flags, 0o640)
        self._size = os.fstat(self._fd).st_size

    def _rotate(self) -> None:
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S.%f")
        try:
            self.path.rename(self.path.with_name(f"{self.path.name}.{stamp}"))
            os.close(self._fd)
            self._open()
        except OSError as error:
            self._record_loss(0, error)
            return
        for old in rotated_files(self.path)[: -(self._max_files - 1) or None]:
            with contextlib.suppress(OSError):
                old.unlink()


def rotated_files(path: Path) -> list[Path]:
    return sorted(path.parent.glob(f"{path.name}.*"))


def _pieces(line: bytes) -> list[bytes]:
    """A line in pieces of the maximum size; at least one, the last one may be empty."""
    if len(line) < _PIECE_BYTES:
        return [line]
    return [line[at : at + _PIECE_BYTES] for at in range(0, len(line) + 1, _PIECE_BYTES)]


def _timestamp() -> str:
    seconds, nanos = divmod(time.time_ns(), 1_000_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{nanos:09d}Z"


_BLOCK = 64 << 10


@dataclass(frozen=True, slots=True)
class PodLogOptions:
    """The options of ``kubectl logs``."""

    tail_lines: int | None = None
    since: datetime | None = None
    limit_bytes: int | None = None
    timestamps: bool = False
    follow: bool = False


async def read_log(
    path: Path, options: PodLogOptions, writer: LogWriter | None = None
) -> AsyncIterator[bytes]:
    """Yield the logged output in chunks. Following ends when the ``writer`` of the log is closed.
    Raises OSError: there is no log, or it is not a regular file.
    """
    left, end = options.limit_bytes, _LineEnd()
    with _Follower(path, options.tail_lines) as follower:
        while True:
            # Checked before reading, so that lines written during the read are not missed.
            complete = writer is None or writer.closed
            for lines in follower.blocks():
                chunk = b"".join(_shown(lines, options, end))
                if left is not None:
                    chunk, left = chunk[:left], left - len(chunk[:left])
                if chunk:
                    yield chunk
                if left == 0:
                    return
            if complete or not options.follow or writer is None:
                return
            if not follower.more_to_read():
                await writer.changed()


class _Follower:
    """Reads complete lines of a log across its rotations."""

    def __init__(self, path: Path, tail_lines: int | None) -> None:
        self._path = path
        self._tail_lines = tail_lines
        self._file: BinaryIO | None = None
        self._rest = b""

    def __enter__(self) -> "_Follower":
        files = [*rotated_files(self._path), self._path]
        offset = 0
        if self._tail_lines is not None:
            files, offset = _tail(files, self._tail_lines)
        self._open(files[0], offset)
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def blocks(self) -> Iterator[list[bytes]]:
        """Yield the available lines, in lists."""
        while True:
            assert self._file is not None, "used inside its with block"
            while block := self._file.read(_BLOCK):
                *lines, self._rest = (self._rest + block).split(b"\n")
                yield lines
            following = self._following()
            if following is None:
                return
            self._open(following, 0)

    def more_to_read(self) -> bool:
        """True if lines were written since the end was reached."""
        assert self._file is not None, "used inside its with block"
        behind = os.fstat(self._file.fileno()).st_size > self._file.tell()
        return behind or self._following() is not None

    def _following(self) -> Path | None:
        """The file that follows the present one, which has been rotated; None if it is the last."""
        assert self._file is not None, "used inside its with block"
        inode = os.fstat(self._file.fileno()).st_ino
        with contextlib.suppress(FileNotFoundError):
            if self._path.stat().st_ino == inode:
                return None
        files = [*rotated_files(self._path), self._path]
        inodes = [_inode(file) for file in files]
        # The present file may have been removed by now: continue with the oldest one left.
        at = inodes.index(inode) + 1 if inode in inodes else 0
        return files[at] if at < len(files) and inodes[at] is not None else None

    def _open(self, path: Path, offset: int) -> None:
        if self._file is not None:
            self._file.close()
        self._file = open_regular(path)
        self._file.seek(offset)


def _inode(path: Path) -> int | None:
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_ino
    return None


def _tail(files: list[Path], lines: int) -> tuple[list[Path], int]:
    """The files that contain the last ``lines`` lines, and the offset in the first of them."""
    for at in range(len(files) - 1, -1, -1):
        with open_regular(files[at]) as file:
            offset, count = _tail_offset(file, lines)
        lines -= count
        if lines <= 0 or at == 0:
            return files[at:], offset
    return files, 0


def _tail_offset(file: BinaryIO, lines: int) -> tuple[int, int]:
    """The offset of the last ``lines`` lines of a file, and the number of lines from there."""
    end = file.seek(0, os.SEEK_END)
    if lines <= 0:
        return end, 0
    count, position = 0, end
    while position > 0:
        start = max(0, position - _BLOCK)
        file.seek(start)
        block = file.read(position - start)
        at = len(block)
        while (at := block.rfind(b"\n", 0, at)) >= 0:
            # The line end at the very end of the file closes the last line: it begins none.
            if start + at + 1 < end:
                count += 1
                if count == lines:
                    return start + at + 1, count
        position = start
    return 0, count + (1 if end else 0)


@dataclass(slots=True)
class _LineEnd:
    """How the text of a log ends that was read so far."""

    stream: bytes = b""
    """The stream of a line that has not ended; empty if the last one has."""
    is_bar: bool = False
    """True if that line contains a carriage return."""
    returns: bool = False
    """True if that line ends with one: what follows overwrites the bar."""


def _shown(lines: list[bytes], options: PodLogOptions, end: _LineEnd) -> Iterator[bytes]:
    """The text of log entries. As in Kubernetes, only the first entry of a line has its time.

    A line of one stream ends, or is overwritten if it is a progress bar, where another stream
    begins one: otherwise a message on stdout would be a part of a bar on stderr. A bar also ends
    where its stream goes on with a complete line that does not overwrite it, such as a traceback.
    """
    for line in lines:
        time, _, rest = line.partition(b" ")
        stream, _, rest = rest.partition(b" ")
        tag, _, text = rest.partition(b" ")
        if options.since is not None and _time(time) < options.since:
            continue
        ends, head = tag == b"F", b""
        if end.stream and stream != end.stream:
            head = b"\r" if end.is_bar else b"\n"
        elif end.is_bar and not end.returns and ends and text and not text.startswith(b"\r"):
            head = b"\n"
        if options.timestamps and (head == b"\n" or not end.stream):
            head += time + b" "
        end.is_bar = not ends and (b"\r" in text or (end.is_bar and stream == end.stream))
        end.returns = text.endswith(b"\r")
        end.stream = b"" if ends else stream
        yield head + text + (b"\n" if ends else b"")


def _time(text: bytes) -> datetime:
    """The time of a line; nanoseconds are dropped, since Python's clock has microseconds."""
    return datetime.fromisoformat(text[:26].decode("ascii", "replace") + "+00:00")
