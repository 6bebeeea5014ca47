"""The saver: a process that writes checkpoints from memory to storage and outlives training.

There is one for each job on each node, started by the agent or the first ``Checkpointer``. Messages
over a socket only wake it; it decides from the content of shared memory, so it may be killed and
started again at any time. When a training process dies, it writes the newest complete save to
storage. When the job is over, it frees the memory and ends.

    python -m gangline.elastic.checkpoint.saver.process HOME
"""

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import sys
import time
from pathlib import Path

from gangline.elastic.checkpoint.errors import CheckpointError
from gangline.elastic.checkpoint.saver import messages
from gangline.elastic.checkpoint.saver.messages import (
    ClientFinished,
    ClientHello,
    FlushReply,
    FlushRequest,
    SaveNotice,
    StorageOutcome,
)
from gangline.elastic.checkpoint.saver.replication import (
    PeerServer,
    Replicator,
    remove_partial_copies,
)
from gangline.elastic.checkpoint.saver.uploader import Uploader
from gangline.elastic.checkpoint.snapshot import directory, inventory
from gangline.elastic.checkpoint.snapshot.directory import FileLock, SaverSettings

log = logging.getLogger(__name__)
POLL_S = 1.0
"""Seconds between polls without a message: parts of other nodes appear without one."""
MAX_RETRY_PAUSE_S = 30.0
"""Longest pause before a failed write is retried."""


class Saver:
    """State of the saver: its connections, requests, and the time since the last process left."""

    def __init__(self, home: Path, settings: SaverSettings) -> None:
        self.home, self.settings = home, settings
        self.loop = asyncio.get_running_loop()
        self.clients: dict[asyncio.StreamWriter, bool] = {}
        """Connections; the value says whether a training process has introduced itself."""
        self.wake, self.sealing = asyncio.Event(), asyncio.Event()
        self.wake.set()
        self.crashes = 0
        """Crashed training processes whose newest save has not been written yet."""
        self.flush_waiters: list[asyncio.StreamWriter] = []
        self.had_clients = False
        self.crashed_ranks: set[int] = set()
        """Ranks that crashed and have not come back."""
        self.rank_connections: dict[int, asyncio.StreamWriter] = {}
        """The newest connection of each rank; a restarted process may connect before the old one
        ends.
        """
        self.no_clients_since = time.monotonic()
        self.is_stopping = False
        self.replicator = Replicator(home)
        self.uploader = Uploader(home, self._report_from_thread)

    def _report_from_thread(self, outcome: StorageOutcome) -> None:
        self.loop.call_soon_threadsafe(self._send_to_all, outcome)

    def _send_to_all(self, outcome: StorageOutcome) -> None:
        for client in self.clients:
            client.write(messages.encode_message(outcome))

    async def serve(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        rank: int | None = None
        has_finished = False
        self.clients[client] = False
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                match messages.decode_message(line):
                    case ClientHello() as hello:
                        rank = hello.rank
                        self.clients[client] = self.had_clients = True
                        self.crashed_ranks.discard(rank)
                        self.rank_connections[rank] = client
                        # A restarted process has written new settings for this job.
                        self.settings = directory.read_settings(self.home) or self.settings
                    case SaveNotice():
                        self.sealing.set()
                    case ClientFinished():
                        has_finished = True
                    case FlushRequest():
                        self.flush_waiters.append(client)
                    case _:
                        log.warning(f"unknown message: {line[:100]!r}", extra={"line": line[:100]})
                self.wake.set()
        del self.clients[client]
        client.close()
        if rank is not None:
            self.no_clients_since = time.monotonic()
            if not has_finished:
                self.crashes += 1
                if self.rank_connections[rank] is client:
                    self.crashed_ranks.add(rank)
        self.wake.set()

    async def run_uploads(self) -> None:
        """Write and commit until the job is over."""
        while not await self._finished():
            pause = POLL_S
            if self.uploader.consecutive_failures:
                pause = min(MAX_RETRY_PAUSE_S, 2.0 ** min(self.uploader.consecutive_failures, 5))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.wake.wait(), pause)
            self.wake.clear()
            await self._round()

    async def _round(self) -> None:
        needs_newest = self.crashes > 0 or self.is_stopping or bool(self.flush_waiters)
        snapshots = await asyncio.to_thread(inventory.list_snapshots, self.home)
        await asyncio.to_thread(self.uploader.resume_commits, self.settings, snapshots)
        await asyncio.to_thread(
            self.uploader.write_snapshots, self.settings, inventory.storage_requests(snapshots)
        )
        await asyncio.to_thread(self.uploader.commit, self.settings)
        if needs_newest:
            await asyncio.to_thread(remove_partial_copies, self.home)
            # Crashes and requests during the write need another one.
            crashes, flush_waiters = self.crashes, self.flush_waiters
            self.flush_waiters = []
            step = await asyncio.to_thread(self.uploader.write_newest, self.settings)
            self.crashes -= crashes
            log.info(f"step {step} written after a crash or on demand", extra={"step": step})
            for client in flush_waiters:
                client.write(messages.encode_message(FlushReply(step)))

    async def run_sealing(self) -> None:
        """Compute checksums of each new save soon after it was taken, and replicate it."""
        while True:
            await self.sealing.wait()
            self.sealing.clear()
            self.settings = directory.read_settings(self.home) or self.settings
            try:
                await asyncio.to_thread(self.uploader.seal_snapshots)
                await asyncio.to_thread(self.replicator.replicate, self.settings)
            except (OSError, CheckpointError) as error:
                log.warning("a save has no checksums or no replica yet", exc_info=error)

    async def _finished(self) -> bool:
        if self.is_stopping:
            return True
        if any(self.clients.values()) or directory.is_job_running(self.home):
            self.no_clients_since = time.monotonic()
            return False
        alone = time.monotonic() - self.no_clients_since
        if (
            self.had_clients
            and not self.crashed_ranks
            and not self.uploader.uncommitted
            and not self.crashes
        ):
            snapshots = await asyncio.to_thread(inventory.list_snapshots, self.home)
            if not inventory.storage_requests(snapshots):
                return True
        return alone > self.settings.linger_s

    def request_stop(self) -> None:
        """Write the newest save, then end: the node is about to be removed."""
        self.is_stopping = True
        self.wake.set()


async def run(home: Path, settings: SaverSettings) -> bool:
    """Serve until the job is over; return whether its memory may be freed."""
    saver = Saver(home, settings)
    saver.loop.add_signal_handler(signal.SIGTERM, saver.request_stop)
    remove_partial_copies(home)
    peers = PeerServer(home)
    peers.start()
    (home / "saver.sock").unlink(missing_ok=True)
    with directory.socket_address(home) as address:
        server = await asyncio.start_unix_server(saver.serve, address)
    sealer = asyncio.create_task(saver.run_sealing())
    saver.sealing.set()
    try:
        await saver.run_uploads()
        if saver.is_stopping:
            await saver._round()
    finally:
        server.close()
        await asyncio.to_thread(peers.shutdown)
        peers.server_close()
        sealer.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sealer
        for client in list(saver.clients):
            client.close()
        await asyncio.to_thread(saver.uploader.close)
    return not saver.is_stopping


def main() -> None:
    """Run for the given folder, unless another saver does or other users can change it."""
    home = Path(sys.argv[1])
    directory.check_job_directory(home)
    logging.basicConfig(
        filename=home / "saver.log", format="%(asctime)s %(levelname)s %(message)s", level="INFO"
    )
    lock = FileLock(home / "saver.lock")
    settings = directory.read_settings(home)
    if settings is None or not lock.acquire(exclusive=True):
        return
    os.nice(5)  # training has priority
    over = asyncio.run(run(home, settings))
    if over and not directory.is_job_running(home):
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
