"""The workers of this node's present attempt: progress, stacks, and saving of checkpoints."""

import asyncio
import logging
import signal
import time
from collections.abc import Mapping

from gangline.elastic.agent.account import Book, Report
from gangline.elastic.agent.group import Group
from gangline.elastic.agent.hang import View
from gangline.elastic.agent.process import Process, end_all, start
from gangline.elastic.agent.progress import evidence, stacks, views
from gangline.elastic.agent.settings import AgentSettings
from gangline.elastic.agent.usage import Meter, told
from gangline.elastic.agent.world import World

log = logging.getLogger(__name__)


class LocalNode:
    """One node's present attempt, and the process that saves checkpoints beside it."""

    def __init__(self, settings: AgentSettings, base: Mapping[str, str]) -> None:
        self._settings = settings
        self._environment = {**base, "TORCHELASTIC_RUN_ID": settings.run_id}
        self._group: Group | None = None
        self._book: Book | None = None
        self._meter: Meter | None = None
        self._last = Report()
        self._ended_at = 0.0
        self._seen: asyncio.Task[list[View]] | None = None
        self._saver: Process | None = None
        self._saving: asyncio.Task[None] | None = None
        self._save_wanted = False

    def begin(self, group: Group, world: World) -> None:
        before, now = self._book, time.monotonic()
        in_place = before is not None and before.round == world.round
        self._book = Book(
            world.round,
            world.attempt,
            since=self._ended_at if in_place else now,
            is_first=before is None,
            tells_steps=before is not None and before.tells_steps,
        )
        self._group, self._meter, self._seen = group, Meter(group), None

    def end(self) -> None:
        """Store the last report, because the workers are about to end."""
        if self._group is not None:
            self._last, self._ended_at = self.report(), time.monotonic()
        self._group = None

    def hangs(self, since: float) -> None:
        """Record that there has been no progress since this time."""
        if self._book:
            self._book.hung_since = since

    def report(self) -> Report:
        """Return the present progress, or the last one after the workers have ended."""
        if self._group is None or self._book is None or self._meter is None:
            return self._last
        return self._book.report(told(self._group), time.monotonic(), self._meter.usage())

    async def views(self) -> list[View]:
        """Return the stacks of all ranks of this node; collected once for each attempt."""
        if self._group is None:
            return await self._seen if self._seen else []
        if self._seen is None:
            taken = views(self._group, self._settings.hang.gather_s, self._settings.node_name)
            self._seen = asyncio.create_task(taken)
        return await asyncio.shield(self._seen)

    def evidence(self) -> str:
        """Return a sentence that names the folder of stacks and flight records."""
        if self._group is None:
            return ""
        return evidence(self._group, stays=self._settings.logs.folder is not None)

    async def dump_stacks(self, reason: str) -> None:
        """Log the stacks of all workers."""
        if self._group is None:
            return
        found = await stacks(self._group, self._settings.hang.gather_s)
        for rank, seen in found.items():
            text = seen.text or "none"
            log.warning("stacks of rank %d (%s):\n%s", rank, reason or "requested", text)

    def start_saving(self) -> None:
        """Start to write the newest checkpoint in memory to storage."""
        self._save_wanted = True
        if self._saving is None or self._saving.done():
            self._saving = asyncio.create_task(self._save())

    async def _save(self) -> None:
        # A running save may have started before the newest step was complete, so a request that
        # comes meanwhile starts another one.
        while self._save_wanted:
            self._save_wanted = False
            self._saver = start(self._settings.save_command, self._environment)
            await asyncio.wait({self._saver.ended})

    async def saved(self, timeout_s: float | None = None) -> None:
        """Wait for the end of saving. Kill it after the timeout."""
        if self._saving is None:
            return
        await asyncio.wait({self._saving}, timeout=timeout_s)
        if not self._saving.done():
            log.warning("the newest checkpoint is not in storage after %g s", timeout_s)
            self._saving.cancel()
            await end_all([self._saver] if self._saver else [], signal.SIGKILL, 0)

    def holds_checkpoints(self) -> bool:
        """True if there is a checkpoint in memory that could be saved."""
        # The import takes time, so only a node that is about to end does it.
        from gangline.elastic.checkpoint.link import homes_of_job  # noqa: PLC0415

        return bool(homes_of_job(self._environment))
