"""Logs of replicas: one upstream stream per replica (or job), shared by all of its readers.

The last lines are kept while somebody reads, so a reader that comes later, or comes back, gets them
without another request. A stream without readers is closed after a short time.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice

from gangline.kube.client.client import ApiClient
from gangline.kube.errors import KubeError
from gangline.sdk.jobs import Job
from gangline.sdk.logs import LogLine, LogOptions, follow_batches, read_logs

KEPT_LINES = 10_000
FIRST_LINES = 1_000
"""Last lines of each replica that a new stream begins with."""
ALL_REPLICAS_OF = 16
"""Of a larger job only its first replica is read, unless another one is chosen."""
IDLE_S = 10.0

LogKey = tuple[str, str, bool]
"""UID of the job, replica (empty for all), and whether the previous attempt is meant."""


@dataclass(slots=True)
class SharedLog:
    """The lines of one replica, or of a job."""

    lines: deque[LogLine] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))
    count: int = 0
    """Number of lines so far, also of those that are no longer kept."""
    has_ended: bool = False
    problem: str = ""
    readers: int = 0
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @contextmanager
    def read(self) -> Iterator[None]:
        """Keep the upstream open in the block."""
        self.readers += 1
        try:
            yield
        finally:
            self.readers -= 1

    def add(self, batch: list[LogLine]) -> None:
        self.lines.extend(batch)
        self.count += len(batch)
        self._wake()

    def end(self, problem: str = "") -> None:
        self.has_ended, self.problem = True, problem
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def since(self, position: int) -> tuple[list[LogLine], int]:
        """Return the kept lines from a position on, and the position behind them."""
        first = self.count - len(self.lines)
        return list(islice(self.lines, max(0, position - first), None)), self.count

    async def wait(self, position: int) -> None:
        """Wait until there are lines behind a position, or the end."""
        while self.count <= position and not self.has_ended:
            await self._changed.wait()


class LogHub:
    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self._logs: dict[LogKey, tuple[SharedLog, asyncio.Task[None]]] = {}

    async def aclose(self) -> None:
        tasks = [task for _, task in self._logs.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def open(self, job: Job, replica: str, *, previous: bool = False) -> SharedLog:
        """Return the log of a replica, which is read from now on."""
        key = job.uid, replica, previous
        entry = self._logs.get(key)
        if entry is None or (entry[1].done() and entry[0].readers == 0):
            shared = SharedLog()
            options = LogOptions(tail=FIRST_LINES, replica=replica, previous=previous)
            task = asyncio.create_task(self._follow(key, shared, job, options))
            entry = self._logs[key] = shared, task
        return entry[0]

    async def _follow(self, key: LogKey, shared: SharedLog, job: Job, options: LogOptions) -> None:
        watching = asyncio.create_task(self._close_when_idle(key, shared))
        try:
            if options.previous:
                lines = read_logs(self._client, job, options)
                shared.add([line async for line in lines])
            else:
                async with follow_batches(self._client, job, options) as batches:
                    async for batch in batches:
                        shared.add([line for line in batch if not line.is_bar])
            shared.end()
        except KubeError as error:
            shared.end(str(error))
        finally:
            if not watching.done() and not shared.has_ended:
                watching.cancel()

    async def _close_when_idle(self, key: LogKey, shared: SharedLog) -> None:
        while True:
            await asyncio.sleep(IDLE_S)
            if shared.readers == 0:
                # After its end a log may have been opened again by now, with readers.
                if (entry := self._logs.get(key)) is not None and entry[0] is shared:
                    self._logs.pop(key)[1].cancel()
                return


def chosen_replica(job: Job, asked: str) -> str:
    """Return the replica whose log is shown; empty for all of a small job."""
    if any(asked in {replica.name, replica.short_name} for replica in job.replicas):
        return asked
    if len(job.replicas) <= ALL_REPLICAS_OF or job.chief is None:
        return ""
    return job.chief.short_name
