"""The saver: a process that writes checkpoints from memory to storage and outlives training.

There is one for each job on each node, started by the agent or the first ``Checkpointer``. Messages
over a socket only wake it; it decides from the content of shared memory, so it may be killed and
started again at any time. The only other state, the uncommitted steps, is rebuilt from storage.
When a training process dies, it writes the newest complete save to storage. When the job is over,
it frees the memory and ends.

    python -m gangline.elastic.checkpoint.saver.process FOLDER
"""

import asyncio
import contextlib
import logging
import math
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import msgspec

from gangline.display import error_text
from gangline.elastic.checkpoint.errors import (
    CheckpointError,
    CorruptError,
    StepTakenError,
    StorageError,
)
from gangline.elastic.checkpoint.format.manifest import (
    PartNote,
    branch_of,
    parse_partial_folder,
    part_file_name,
)
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
from gangline.elastic.checkpoint.snapshot import directory, inventory
from gangline.elastic.checkpoint.snapshot.directory import FileLock, SaverSettings
from gangline.elastic.checkpoint.snapshot.inventory import SnapshotInfo
from gangline.elastic.checkpoint.snapshot.segment import Segment, SegmentState
from gangline.elastic.checkpoint.storage import branches, commit
from gangline.elastic.checkpoint.storage.branches import RECORD, BranchRecord
from gangline.elastic.checkpoint.storage.target import StorageTarget, open_target

log = logging.getLogger(__name__)
COMMIT_WAIT_S = 10.0
"""Time that a step waits for the other nodes before an older one is tried as well."""
MAX_SILENCE_S = 120.0
"""Time after which a step is reported that waits for nodes which may be writing."""
OBSOLETE_AFTER_S = 3600.0
"""An unfinished step to which nothing was written for this time is removed."""
POLL_S = 1.0
"""Seconds between polls without a message: parts of other nodes appear without one."""
MAX_RETRY_PAUSE_S = 30.0
"""Longest pause before a failed write is retried."""


class Uploader:
    """Writes the saves of one job's folder to its target."""

    def __init__(self, job_folder: Path, report: Callable[[StorageOutcome], object]) -> None:
        self.job_folder, self.report = job_folder, report
        self.stop = threading.Event()
        self.uncommitted: dict[tuple[int, str], int] = {}
        """Uncommitted steps and plans that wait for other ranks, with the number of ranks."""
        self._waiting_since: dict[tuple[int, str], float] = {}
        """When this saver had written its part; infinite once a delay is reported."""
        self.consecutive_failures = 0
        self.taken_steps: set[tuple[int, str]] = set()
        """Steps and plans that another saver committed first; they are not tried again."""
        self._target: tuple[SaverSettings, StorageTarget, commit.BandwidthLimiter] | None = None
        self._pool = ThreadPoolExecutor(4, thread_name_prefix="write")
        self._mapped: dict[Path, Segment] = {}
        """Segments that stay mapped for repeated checksums."""
        self._published: bytes | None = None
        """The record of branches that is in storage."""
        self._foreign_to = ""
        """The branch for which it was reported that storage has newer steps of another one."""

    def close(self) -> None:
        """Stop waiting for bandwidth and end the threads."""
        self.stop.set()
        self._pool.shutdown()

    def _open(self, settings: SaverSettings) -> tuple[StorageTarget, commit.BandwidthLimiter]:
        if settings.refusal:
            raise StorageError(settings.refusal)
        if self._target is None or self._target[0] != settings:
            target = open_target(settings.target, settings.options)
            self._find_unfinished(target)
            pace = commit.BandwidthLimiter(settings.bandwidth, self.stop)
            self._target = settings, target, pace
        return self._target[1:]

    def _find_unfinished(self, target: StorageTarget) -> None:
        """Find the uncommitted steps that an earlier saver left; remove those of ended attempts.

        In an object store a step is written under its final name, so it may belong to another job.
        """
        own_plans = {snapshot.layout.plan for snapshot in inventory.list_snapshots(self.job_folder)}
        for step, name in target.list_unfinished():
            partial = parse_partial_folder(name)
            is_own = partial is not None and partial[1] in own_plans
            if not is_own and (target.idle_s(name) or 0.0) > OBSOLETE_AFTER_S:
                log.info(f"removed unfinished step {step}", extra={"step": step})
                target.remove(name)
                continue
            notes = [one for one in target.list_names(name) if one.startswith("rank-")]
            for one in notes[:1]:
                try:
                    note = msgspec.json.decode(target.read(f"{name}/{one}"), type=PartNote)
                except (msgspec.MsgspecError, FileNotFoundError):
                    continue
                if partial or note.plan in own_plans:
                    self.uncommitted[note.step, note.plan] = note.world

    def resume_commits(self, settings: SaverSettings, snapshots: Sequence[SnapshotInfo]) -> None:
        """Find the uncommitted steps of an earlier saver, if memory hints at any."""
        if self._target is not None:
            return
        if any(one.is_local and one.header.for_storage and one.is_in_storage for one in snapshots):
            try:
                self._open(settings)
            except (OSError, StorageError) as error:
                self.consecutive_failures += 1
                log.warning("storage cannot be read", exc_info=error)

    def write_snapshots(self, settings: SaverSettings, snapshots: Sequence[SnapshotInfo]) -> bool:
        """Write these saves; return whether all of them are in storage now."""
        if not snapshots:
            return True
        try:
            target, pace = self._open(settings)
            done = list(self._pool.map(lambda one: self._write_one(target, pace, one), snapshots))
        except (OSError, StorageError, CorruptError) as error:
            self.consecutive_failures += 1
            log.warning(
                f"step {snapshots[0].step} was not written: {error}",
                extra={"step": snapshots[0].step},
                exc_info=error,
            )
            self._report_failure(snapshots[0].step, snapshots[0].layout.plan, error)
            return False
        self.consecutive_failures = 0
        return all(done)

    def _write_one(
        self, target: StorageTarget, pace: commit.BandwidthLimiter, snapshot: SnapshotInfo
    ) -> bool:
        segment = Segment(snapshot.path)
        try:
            # Locked for the complete upload, perhaps minutes: saves go to the other buffers. The
            # mark that it is in storage has the generation, so it never counts for a later save.
            with segment.reading() as free:
                if not free or segment.read_header() != snapshot.header:
                    return False  # a newer save replaces it, and will be requested itself
                if not commit.is_committed(target, snapshot.step, snapshot.layout.plan):
                    commit.write_part(target, segment, snapshot.header, snapshot.layout, pace)
                    key = (snapshot.step, snapshot.layout.plan)
                    self.uncommitted[key] = snapshot.layout.world
                    self._waiting_since.setdefault(key, time.monotonic())
                segment.mark_persisted(snapshot.header.generation)
        except CorruptError:
            segment.write_header(replace(snapshot.header, state=SegmentState.CORRUPT))
            raise
        finally:
            segment.close()
        return True

    def note_branches(self, settings: SaverSettings) -> None:
        """Copy a new record of branches to storage, before there is a step of the new branch."""
        if directory.read_file(self.job_folder / RECORD) == self._published:
            return
        try:
            self.publish_branches(settings)
        except (OSError, StorageError) as error:
            self.consecutive_failures += 1
            log.warning(f"{RECORD} was not written: {error}", exc_info=error)

    def publish_branches(self, settings: SaverSettings) -> BranchRecord:
        """Copy the record of abandoned branches from memory to storage; return the valid one.

        It comes before the first step of the new branch, which would count as older than they.
        Raises OSError, StorageError: storage cannot be read or written.
        """
        target, _ = self._open(settings)
        data = directory.read_file(self.job_folder / RECORD)
        if data == self._published:
            return branches.read_record(target)
        record = branches.publish_record(target, branches.decode_record(data or b""))
        self._published = data
        return record

    def commit(self, settings: SaverSettings) -> list[int]:
        """Commit complete steps and return them. Other steps stay uncommitted."""
        done = dict[int, str]()
        for (step, plan), world in sorted(self.uncommitted.items(), reverse=True):
            try:
                target, _ = self._open(settings)
                if self.publish_branches(settings).abandons(step, plan):
                    log.info(f"step {step} is abandoned", extra={"step": step})
                    del self.uncommitted[step, plan]
                    continue
                if not commit.try_commit(target, step, plan, world):
                    self._report_delay(target, settings, step, plan)
                    continue
                del self.uncommitted[step, plan]
                done[step] = plan
                self._retain(target, settings, step, plan)
            except StepTakenError as error:
                del self.uncommitted[step, plan]
                self.taken_steps.add((step, plan))
                log.warning(
                    f"step {step} was not committed: {error}", extra={"step": step}, exc_info=error
                )
                self._report_failure(step, plan, error)
            except (OSError, StorageError) as error:
                self.consecutive_failures += 1
                self._report_failure(step, plan, error)
        if done:  # older steps and other branches are obsolete; retention has removed their parts
            newest, branch = max(done), branch_of(done[max(done)])
            self.uncommitted = {
                (step, plan): world
                for (step, plan), world in self.uncommitted.items()
                if step > newest and branch_of(plan) == branch
            }
        self._waiting_since = {
            key: since for key, since in self._waiting_since.items() if key in self.uncommitted
        }
        return list(done)

    def _retain(self, target: StorageTarget, settings: SaverSettings, step: int, plan: str) -> None:
        """Report a committed step, and remove those that it makes obsolete."""
        self.report(StorageOutcome(step, committed=True, plan=plan))
        result = commit.apply_retention(target, settings.keep, settings.keep_every, step, plan)
        newest_plan = plan if result.newest == step else commit.stored_plan(target, result.newest)
        directory.write_stored_step(self.job_folder, result.newest, newest_plan or "")
        reasons = []
        if result.removed:
            was = "were" if len(result.removed) > 1 else "was"
            reasons.append(f"the abandoned {commit.steps_text(result.removed)} {was} removed")
        branch = branch_of(plan)
        if result.newest > step and branch_of(newest_plan or "") != branch != self._foreign_to:
            self._foreign_to = branch
            reasons.append(
                f"step {result.newest}, from which this training has not continued, remains the "
                "one that is loaded by default: load the step to continue from, or use a folder "
                "for each training"
            )
        for reason in reasons:
            self.report(StorageOutcome(step, committed=True, reason=reason, plan=plan))

    def _report_failure(self, step: int, plan: str, error: Exception) -> None:
        self.report(StorageOutcome(step, False, error_text(error), plan))

    def _report_delay(
        self, target: StorageTarget, settings: SaverSettings, step: int, plan: str
    ) -> None:
        """Report once the parts that a step has been waiting for too long."""
        since, world = self._waiting_since.get((step, plan)), self.uncommitted[step, plan]
        if since is None:
            return  # of an ended attempt
        if since == math.inf and step < max(self.uncommitted)[0]:
            self._remove_superseded(target, step, plan, world)
        waited_s = time.monotonic() - since
        if waited_s <= COMMIT_WAIT_S:
            return
        idle_s = target.idle_s(target.staging_folder(step, plan))
        if waited_s <= MAX_SILENCE_S and (idle_s is None or idle_s <= COMMIT_WAIT_S):
            return  # another node is probably writing its part
        self._waiting_since[step, plan] = math.inf
        hosts = settings.hosts if len(settings.hosts) == world else [""] * world
        reason = commit.delay_text(target, step, plan, hosts)
        log.warning(f"step {step} is incomplete: {reason}", extra={"step": step, "reason": reason})
        self.report(StorageOutcome(step, False, reason, plan))

    def _remove_superseded(self, target: StorageTarget, step: int, plan: str, world: int) -> None:
        """Remove a delayed step if the missing ranks have not begun it: they write newer ones."""
        folder = target.staging_folder(step, plan)
        begun = set(target.list_names(folder))
        missing = commit.missing_ranks(target, step, plan, world)
        is_idle = (target.idle_s(folder) or 0.0) > COMMIT_WAIT_S
        if is_idle and not any(part_file_name(rank) in begun for rank in missing):
            log.info(f"removed unfinished step {step}", extra={"step": step})
            del self.uncommitted[step, plan]
            target.remove(folder)

    def write_newest(self, settings: SaverSettings) -> int | None:
        """Write the newest save that all ranks of this node hold, and wait for its commit.

        If other nodes do not hold it, the next older one is tried as well.
        """
        for step in inventory.common_steps(inventory.list_snapshots(self.job_folder)):
            snapshots = inventory.snapshots_at_step(inventory.list_snapshots(self.job_folder), step)
            if snapshots and (step, snapshots[0].layout.plan) in self.taken_steps:
                continue
            if not self.write_snapshots(settings, snapshots):
                return None
            if self._committed_in_time(settings, step, snapshots[0].layout.plan):
                return step
        return None

    def _committed_in_time(self, settings: SaverSettings, step: int, plan: str) -> bool:
        begin = time.monotonic()
        while (step, plan) in self.uncommitted:
            self.commit(settings)
            if (step, plan) not in self.uncommitted:
                break
            passed = time.monotonic() - begin
            if passed > COMMIT_WAIT_S or self.stop.is_set():
                return False
            if passed > COMMIT_WAIT_S / 4:
                self._write_replacements(settings, step, plan)
            self.stop.wait(min(1.0, 0.05 + passed / 10))
        return (step, plan) not in self.taken_steps

    def _write_replacements(self, settings: SaverSettings, step: int, plan: str) -> None:
        """Write the parts of ranks on lost nodes, from copies on this node."""
        try:
            target, _ = self._open(settings)
            missing = commit.missing_ranks(target, step, plan, self.uncommitted[step, plan])
        except (OSError, StorageError):
            return  # the next commit reports the error
        snapshots = inventory.replacement_parts(
            inventory.list_snapshots(self.job_folder), step, plan, missing
        )
        for one in snapshots:
            log.warning(
                f"writing the part of the lost rank {one.rank} of step {step}",
                extra={"rank": one.rank, "step": step},
            )
        self.write_snapshots(settings, snapshots)

    def seal_snapshots(self, snapshots: Sequence[SnapshotInfo]) -> int:
        """Compute missing checksums of complete saves; return how many were missing.

        Not thread-safe.
        """
        for path in [path for path, one in self._mapped.items() if not one.is_file_at(path)]:
            self._mapped.pop(path).close()  # replaced or removed: its memory must be freed
        count = 0
        for snapshot in snapshots:
            try:  # segments stay mapped: new page faults cost more than the checksums
                segment = self._mapped.get(snapshot.path) or Segment(snapshot.path)
            except (FileNotFoundError, CorruptError):
                continue  # removed since the inventory was taken
            self._mapped[snapshot.path] = segment
            if segment.read_seal(snapshot.header, len(snapshot.layout.entries)) is None:
                count += commit.seal_if_unchanged(segment, snapshot.header, snapshot.layout)
        return count


class Saver:
    """State of the saver: its connections, requests, and the time since the last process left."""

    def __init__(self, job_folder: Path, settings: SaverSettings) -> None:
        self.job_folder, self.settings = job_folder, settings
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
        self.replicator = Replicator(job_folder)
        self.uploader = Uploader(
            job_folder,
            lambda outcome: self.loop.call_soon_threadsafe(self._send_to_all, outcome),
        )

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
                        self.settings = directory.read_settings(self.job_folder) or self.settings
                    case SaveNotice():
                        # It wakes uploads only if one is requested: with a save in every step,
                        # their rounds would take processor time from training.
                        self.sealing.set()
                        continue
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
        """Do the work that memory asks for; what fails is tried again in a later round."""
        # 1. What asks for the newest save is read before the inventory: a request that arrives
        #    during the round waits for the next one, whose inventory has its save.
        needs_newest = self.crashes > 0 or self.is_stopping or bool(self.flush_waiters)
        self.settings = directory.read_settings(self.job_folder) or self.settings
        # 2. The steps that a killed saver had written but not committed.
        snapshots = await asyncio.to_thread(inventory.list_snapshots, self.job_folder)
        await asyncio.to_thread(self.uploader.resume_commits, self.settings, snapshots)
        # 3. Abandoned branches, requested saves, then commits: a step appears when the last node
        #    has written its part.
        await asyncio.to_thread(self.uploader.note_branches, self.settings)
        await asyncio.to_thread(
            self.uploader.write_snapshots, self.settings, inventory.storage_requests(snapshots)
        )
        await asyncio.to_thread(self.uploader.commit, self.settings)
        if needs_newest:
            # 4. The newest save of a crashed, stopping or asking job. Crashes and requests during
            #    the write need another one.
            await asyncio.to_thread(remove_partial_copies, self.job_folder)
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
            self.settings = directory.read_settings(self.job_folder) or self.settings
            await asyncio.to_thread(self._seal, self.settings)

    def _seal(self, settings: SaverSettings) -> None:
        snapshots = inventory.list_snapshots(self.job_folder)
        if inventory.storage_requests(snapshots):
            self.loop.call_soon_threadsafe(self.wake.set)
        try:
            self.uploader.seal_snapshots(snapshots)
            self.replicator.replicate(settings)
        except (OSError, CheckpointError) as error:
            log.warning("a save has no checksums or no replica yet", exc_info=error)

    async def _finished(self) -> bool:
        if self.is_stopping:
            return True
        if any(self.clients.values()) or directory.is_job_running(self.job_folder):
            self.no_clients_since = time.monotonic()
            return False
        # The memory is freed when no save in it can be needed again: every process has reported
        # that it is finished, and each requested save is committed, not only written. Otherwise it
        # is retained for a restart, for ``linger_s``.
        idle_s = time.monotonic() - self.no_clients_since
        unfinished = self.crashed_ranks or self.crashes or self.uploader.uncommitted
        if self.had_clients and not unfinished:
            snapshots = await asyncio.to_thread(inventory.list_snapshots, self.job_folder)
            if not inventory.storage_requests(snapshots):
                return True
        return idle_s > self.settings.linger_s

    def request_stop(self) -> None:
        """Write the newest save, then end: the node is about to be removed."""
        self.is_stopping = True
        self.wake.set()


async def run(job_folder: Path, settings: SaverSettings) -> bool:
    """Serve until the job is over; return whether its memory may be freed."""
    saver = Saver(job_folder, settings)
    saver.loop.add_signal_handler(signal.SIGTERM, saver.request_stop)
    remove_partial_copies(job_folder)
    peers = PeerServer(job_folder)
    peers.start()
    (job_folder / "saver.sock").unlink(missing_ok=True)
    with directory.socket_address(job_folder) as address:
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
    job_folder = Path(sys.argv[1])
    directory.check_job_directory(job_folder)
    logging.basicConfig(
        filename=job_folder / "saver.log",
        format="%(asctime)s %(levelname)s %(message)s",
        level="INFO",
    )
    lock = FileLock(job_folder / "saver.lock")
    settings = directory.read_settings(job_folder)
    if settings is None or not lock.acquire(exclusive=True):
        return
    os.nice(5)  # training has priority
    over = asyncio.run(run(job_folder, settings))
    if over and not directory.is_job_running(job_folder):
        shutil.rmtree(job_folder, ignore_errors=True)


if __name__ == "__main__":
    main()
