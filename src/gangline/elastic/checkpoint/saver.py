"""The saver: a process that writes checkpoints from memory to storage and outlives training
processes.

There is one for each job on each node, started by the agent or the first ``Checkpointer``. Messages
over a socket only wake it; it decides from the content of shared memory, so it may be killed and
started again at any time. When a training process dies, it writes the newest complete save to
storage. When the job is over, it frees the memory and ends.

    python -m gangline.elastic.checkpoint.saver HOME
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

from gangline.elastic.checkpoint import home as homes
from gangline.elastic.checkpoint import pending, words
from gangline.elastic.checkpoint.errors import CheckpointError
from gangline.elastic.checkpoint.home import Hold, Settings
from gangline.elastic.checkpoint.peers import PeerServer, Replicator, clear_abandoned
from gangline.elastic.checkpoint.words import Bye, Flush, Flushed, Hello, Outcome, Saved
from gangline.elastic.checkpoint.writing import Writer

log = logging.getLogger(__name__)
LOOK_S = 1.0
"""Seconds between polls without a message: parts of other nodes appear without one."""
LONGEST_WAIT_S = 30.0
"""Longest pause before a failed write is retried."""


class Saver:
    """State of the saver: its connections, requests, and the time since the last process left."""

    def __init__(self, home: Path, settings: Settings) -> None:
        self.home, self.settings = home, settings
        self.loop = asyncio.get_running_loop()
        self.clients: dict[asyncio.StreamWriter, bool] = {}
        """Connections; the value says whether a training process has introduced itself."""
        self.wake, self.sealing = asyncio.Event(), asyncio.Event()
        self.wake.set()
        self.deaths = 0
        """Crashed training processes whose newest save has not been written yet."""
        self.flushers: list[asyncio.StreamWriter] = []
        self.seen_any = False
        self.fallen: set[int] = set()
        """Ranks that crashed and have not come back."""
        self.newest: dict[int, asyncio.StreamWriter] = {}
        """The newest connection of each rank. A restarted process may connect before the old
        connection ends.
        """
        self.alone_since = time.monotonic()
        self.ending = False
        self.replicator = Replicator(home)
        self.writer = Writer(home, self._report_from_thread)

    def _report_from_thread(self, outcome: Outcome) -> None:
        self.loop.call_soon_threadsafe(self._tell_all, outcome)

    def _tell_all(self, outcome: Outcome) -> None:
        for client in self.clients:
            client.write(words.encode(outcome))

    async def serve(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        rank: int | None = None
        has_finished = False
        self.clients[client] = False
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                match words.decode(line):
                    case Hello() as hello:
                        rank = hello.rank
                        self.clients[client] = self.seen_any = True
                        self.fallen.discard(rank)
                        self.newest[rank] = client
                        # A restarted process has written new settings for this job.
                        self.settings = homes.read_settings(self.home) or self.settings
                    case Saved():
                        self.sealing.set()
                    case Bye():
                        has_finished = True
                    case Flush():
                        self.flushers.append(client)
                    case _:
                        log.warning("unknown message", extra={"line": line[:100]})
                self.wake.set()
        del self.clients[client]
        client.close()
        if rank is not None:
            self.alone_since = time.monotonic()
            if not has_finished:
                self.deaths += 1
                if self.newest[rank] is client:
                    self.fallen.add(rank)
        self.wake.set()

    async def write_for_ever(self) -> None:
        """Write and commit until the job is over."""
        while not await self._finished():
            pause = LOOK_S
            if self.writer.troubles:
                pause = min(LONGEST_WAIT_S, 2.0 ** min(self.writer.troubles, 5))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.wake.wait(), pause)
            self.wake.clear()
            await self._round()

    async def _round(self) -> None:
        rescue = self.deaths > 0 or self.ending or bool(self.flushers)
        snapshots = await asyncio.to_thread(pending.survey, self.home)
        await asyncio.to_thread(self.writer.take_up, self.settings, snapshots)
        await asyncio.to_thread(self.writer.write, self.settings, pending.asked_for(snapshots))
        await asyncio.to_thread(self.writer.commit, self.settings)
        if rescue:
            await asyncio.to_thread(clear_abandoned, self.home)
            deaths, flushers = self.deaths, self.flushers
            self.flushers = []
            step = await asyncio.to_thread(self.writer.rescue, self.settings)
            self.deaths -= deaths
            log.info("newest save written after a death or on demand", extra={"step": step})
            for client in flushers:
                client.write(words.encode(Flushed(step)))

    async def seal_for_ever(self) -> None:
        """Compute checksums of each new save soon after it was taken, and replicate it."""
        while True:
            await self.sealing.wait()
            self.sealing.clear()
            self.settings = homes.read_settings(self.home) or self.settings
            try:
                await asyncio.to_thread(self.writer.seal)
                await asyncio.to_thread(self.replicator.send, self.settings)
            except (OSError, CheckpointError) as error:
                log.warning("a save has no checksums or no replica yet", exc_info=error)

    async def _finished(self) -> bool:
        if self.ending:
            return True
        if any(self.clients.values()) or homes.job_lives(self.home):
            self.alone_since = time.monotonic()
            return False
        alone = time.monotonic() - self.alone_since
        if self.seen_any and not self.fallen and not self.writer.waiting and not self.deaths:
            snapshots = await asyncio.to_thread(pending.survey, self.home)
            if not pending.asked_for(snapshots):
                return True
        return alone > self.settings.linger_s

    def end(self) -> None:
        """Write the newest save, then end: the node is about to be removed."""
        self.ending = True
        self.wake.set()


async def run(home: Path, settings: Settings) -> bool:
    """Serve until the job is over; return whether its memory may be freed."""
    saver = Saver(home, settings)
    saver.loop.add_signal_handler(signal.SIGTERM, saver.end)
    clear_abandoned(home)
    peers = PeerServer(home)
    peers.start()
    (home / "saver.sock").unlink(missing_ok=True)
    with homes.socket_address(home) as address:
        server = await asyncio.start_unix_server(saver.serve, address)
    sealer = asyncio.create_task(saver.seal_for_ever())
    saver.sealing.set()
    try:
        await saver.write_for_ever()
        if saver.ending:
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
        await asyncio.to_thread(saver.writer.close)
    return not saver.ending


def main() -> None:
    """Run for the given folder, unless another saver does."""
    home = Path(sys.argv[1])
    logging.basicConfig(
        filename=home / "saver.log", format="%(asctime)s %(levelname)s %(message)s", level="INFO"
    )
    hold = Hold(home / "saver.lock")
    settings = homes.read_settings(home)
    if settings is None or not hold.take(exclusive=True):
        return
    os.nice(5)  # training has priority
    over = asyncio.run(run(home, settings))
    if over and not homes.job_lives(home):
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
