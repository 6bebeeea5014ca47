"""Assembles a master: journal, state, service, server."""

import asyncio
import logging
from collections.abc import Callable

import msgspec

from gangline.elastic.master.facts.publication import Publication
from gangline.elastic.master.journal import GroupCommit, Journal, JournalError
from gangline.elastic.master.service import MasterService
from gangline.elastic.master.settings import MasterSettings
from gangline.elastic.master.state import state as rec
from gangline.elastic.master.state.core import MasterCore
from gangline.elastic.master.state.state import (
    ClockReading,
    JobClock,
    MasterState,
    PersistentState,
    read_clocks,
)
from gangline.elastic.protocol.channel import JobSecret
from gangline.elastic.protocol.server import MasterServer

log = logging.getLogger(__name__)


async def run_master(
    settings: MasterSettings,
    secret: JobSecret,
    journal: Journal,
    stop: asyncio.Event,
    listening: Callable[[int], None] = lambda port: None,
    publication: Publication | None = None,
) -> None:
    """Serve a job until ``stop`` is set, or until the job has been over for the configured time.

    Args:
        publication: where facts are published and tuning comes from; None for nowhere.

    Raises:
        JournalError: the journal cannot be used.
        OSError: the port is in use.
    """
    try:
        core, at = replay_journal(journal)
        now = read_clocks()
        down_s = downtime_s(core.state.persistent, at, now)
        clock = JobClock(at or now.wall_s)
        group_commit = GroupCommit(journal)
        service = MasterService(settings, core, clock, group_commit)
        group_commit.configure(service.snapshot, service.journal_failed)
        journal.set_state_source(service.snapshot, service.summary)
        server = MasterServer(service, secret)
        inherited = settings.listen_descriptor
        port = await server.start(settings.hosts, settings.port, inherited)
        details = {"job": settings.job, "port": port, "master": service.name}
        log.info("the master is serving", extra=details)
        service.start(down_s)
        listening(port)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(group_commit.run()), group.create_task(service.run())]
            if publication is not None:
                tasks.append(group.create_task(publication.run(service)))
            await _end(settings, service, stop)
            for task in tasks:
                task.cancel()
        service.record_goodput()
        await group_commit.flush()
        await server.stop()
        if publication is not None:
            await publication.finish()
    finally:
        await journal.close()


async def _end(settings: MasterSettings, service: MasterService, stop: asyncio.Event) -> None:
    if settings.linger_s is None:
        await stop.wait()
        return
    waiters = [asyncio.create_task(stop.wait()), asyncio.create_task(service.is_over.wait())]
    try:
        await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
        if not stop.is_set():
            await asyncio.wait({waiters[0]}, timeout=settings.linger_s)
    finally:
        for waiter in waiters:
            waiter.cancel()


def downtime_s(state: PersistentState, at: float, now: ClockReading) -> float:
    """Return the seconds without a master.

    Args:
        at: the end of the journal on the job's clock; 0 for a new one.
    """
    if not at or state.moment is None:
        return 0.0
    return max(0.0, state.moment.seconds_until(now) - (at - state.moment_at))


def replay_journal(journal: Journal) -> tuple[MasterCore, float]:
    """Replay the journal: return the state, and the time at which it ends (0 for a new one).

    Raises JournalError: it cannot be used, or a newer version wrote it.
    """
    snapshot, lines = journal.read()
    try:
        state, at = MasterState.from_snapshot(snapshot) if snapshot else (MasterState(), 0.0)
        core = MasterCore(state)
        for line in lines:
            record = rec.decode_record(line)
            core.apply(record)
            at = record.at
        core.timeline.take_new()  # an earlier master has published these events
    except (ValueError, msgspec.MsgspecError) as error:
        raise JournalError(f"the journal cannot be read: {error}") from error
    return core, at
