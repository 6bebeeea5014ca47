"""What a checkpointer shares with other processes: the job's folder in memory, its locks, a saver.

``open_session`` is called by all ranks together, and opens these in the order that the safety of
the folder depends on. A rank that cannot open one of them closes what it has opened; the kernel
releases the locks of a process that dies.
"""

import contextlib
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from gangline.elastic.checkpoint.errors import FolderInUseError
from gangline.elastic.checkpoint.ranks import SaveGroup, node_name
from gangline.elastic.checkpoint.saver.client import SaverClient
from gangline.elastic.checkpoint.saver.messages import ClientHello
from gangline.elastic.checkpoint.snapshot import directory
from gangline.elastic.checkpoint.snapshot.directory import FileLock, RankLock, SaverSettings
from gangline.elastic.checkpoint.snapshot.ring import SnapshotRing
from gangline.elastic.variables import join_address


@dataclass(frozen=True, slots=True)
class BufferOptions:
    """The buffers that a rank saves to."""

    count: int
    """Number of snapshots of the state in shared memory."""
    overlap: bool
    """Return from a save while an accelerator still sends."""
    on_complete: Callable[[int], None]
    """Called with the step of each complete save, possibly in another thread."""


@dataclass(frozen=True, slots=True)
class CheckpointSession:
    """The open resources of one rank."""

    node: str
    """The node as the ranks of one shared memory know it."""
    job_folder: Path
    """The job's folder in shared memory."""
    settings: SaverSettings
    buffers: SnapshotRing
    saver_client: SaverClient
    _opened: contextlib.ExitStack
    """Closes the connection to the saver, then the locks."""

    def close(self, finished: bool) -> None:
        """Release all; a ``finished`` session waits until storage has what was saved to it."""
        self.buffers.close()  # may report a last save, so before the saver client
        if finished:
            self.saver_client.finish()
        self._opened.close()


def open_session(
    ranks: SaveGroup,
    target: str,
    environment: Mapping[str, str],
    buffers: BufferOptions,
    replicas: bool,
    settings: Mapping[str, Any],
) -> CheckpointSession:
    """Open the job's folder in shared memory and connect to the node's saver.

    All ranks call this together. ``settings`` are further fields of ``SaverSettings``. With
    ``replicas`` each node's saves are copied to the next node.

    Raises:
        FolderInUseError: another running job writes to the target, or another process as this rank.
        InsecureMemoryError: another user can change the folder in shared memory.
    """
    base = directory.shared_memory_root(environment)
    node = node_name(base)
    # 1. One name of the job on all ranks: the ranks of a node meet in the folder of that name.
    job = ranks.broadcast(directory.job_name(environment, target))
    job_folder = directory.create_job_directory(base, job, target)
    with contextlib.ExitStack() as opened:
        # 2. The job's lock. From here on no other job removes the folder as abandoned.
        job_lock = FileLock(job_folder / "job.lock")
        opened.callback(job_lock.close)
        job_lock.acquire(exclusive=False)
        # 3. The rank's lock, before any segment is touched: two processes that save as one rank
        #    would overwrite each other's buffers.
        rank_lock = RankLock(job_folder, ranks.rank, target)
        opened.callback(rank_lock.close)
        ring = SnapshotRing(
            job_folder, ranks.rank, buffers.count, buffers.overlap, buffers.on_complete
        )
        # 4. Another job with the same target. Both have their locks before they look, so of two
        #    jobs that start at the same time at least one sees the other.
        _check_target_unused(job_folder, job, target)
        if ranks.rank == 0:
            directory.remove_abandoned(base, time.time(), keep=job_folder)
        # 5. The settings, before the saver starts, which reads them.
        saver_settings = SaverSettings(target=target, job=job, **settings)
        directory.write_settings(job_folder, saver_settings)
        saver_client = SaverClient(job_folder, ClientHello(ranks.rank, os.getpid()))
        opened.callback(saver_client.close)
        saver_client.connect()
        # 6. The addresses of the other nodes' savers: a saver has its port once it is connected.
        saver_settings = _exchange_addresses(
            ranks, node, job_folder, saver_settings, environment, replicas
        )
        return CheckpointSession(
            node, job_folder, saver_settings, ring, saver_client, opened.pop_all()
        )


def _check_target_unused(job_folder: Path, job: str, target: str) -> None:
    """Check that no other job of this machine writes to the same target."""
    for other in directory.list_job_directories(job_folder.parent):
        settings = directory.read_settings(other)
        if other == job_folder or settings is None or settings.target != target:
            continue
        if directory.is_job_running(other):
            raise FolderInUseError(
                f"job {settings.job!r} is writing to {target}; {job!r} needs another folder"
            )


def _exchange_addresses(
    ranks: SaveGroup,
    node: str,
    job_folder: Path,
    settings: SaverSettings,
    environment: Mapping[str, str],
    replicas: bool,
) -> SaverSettings:
    """Exchange hosts and saver addresses. The next node by rank stores this node's ``replicas``."""
    host = socket.gethostname()
    own_host = environment.get("POD_IP") or host
    port = (job_folder / "port").read_text()
    views = ranks.all_gather((host, (node, own_host, port)))
    settings = msgspec.structs.replace(settings, hosts=[host for host, _ in views])
    savers = [saver for _, saver in views]
    if len({host for _, host, _ in savers}) == 1:
        savers = [(name, "127.0.0.1", port) for name, _, port in savers]
    addresses = {name: join_address(host, port) for name, host, port in savers}
    token = ranks.broadcast(secrets.token_hex(16))
    if replicas and len(addresses) > 1:
        nodes = list(addresses)
        peer = nodes[(nodes.index(node) + 1) % len(nodes)]
        settings = msgspec.structs.replace(
            settings, address=addresses[node], peer=addresses[peer], token=token
        )
    directory.write_settings(job_folder, settings)
    return settings
