"""CPU and memory of pods from the metrics API, and of parameter servers by the minute."""

import asyncio
from bisect import insort
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from gangline.brain.advisers.view import ServerUse
from gangline.kube.client.client import ApiClient
from gangline.sdk.usage import pod_usage

POLL_S = 30.0
MAX_SAMPLES = 512


class PodSample(NamedTuple):
    memory_bytes: int
    cpu_millis: int


class SampleBuffer:
    """The samples of one run: the peak of memory, and a sorted sample of CPU.

    Beyond ``MAX_SAMPLES`` every second reading is kept, so that the sample spans all of the run.
    """

    def __init__(self) -> None:
        self.peak_memory_bytes = 0
        self.count = 0
        self.cpu_millis: list[int] = []
        self._stride = 1

    def add(self, sample: PodSample) -> None:
        self.peak_memory_bytes = max(self.peak_memory_bytes, sample.memory_bytes)
        if self.count % self._stride == 0:
            insort(self.cpu_millis, sample.cpu_millis)
        self.count += 1
        if len(self.cpu_millis) > MAX_SAMPLES:
            self.cpu_millis = self.cpu_millis[::2]
            self._stride *= 2


async def poll_usage(
    client: ApiClient,
    receive: Callable[[Mapping[tuple[str, str], PodSample]], Awaitable[None]],
    every_s: float = POLL_S,
) -> None:
    """Call ``receive`` with the readings by namespace and pod, until cancelled."""
    while True:
        usage = (await pod_usage(client, None)).items()
        used = {pod: PodSample(round(one.memory), round(1000 * one.cpu)) for pod, one in usage}
        await receive(used)
        await asyncio.sleep(every_s)


MINUTE_MS = 60_000
MINUTES = 120
"""Minutes of one server that are kept: advice on idle servers looks back an hour."""


class ServerTable:
    def __init__(self) -> None:
        self._minutes: dict[ServerUse, dict[int, list[PodSample]]] = {}
        """The readings of each server by the minute."""

    def add(
        self,
        rank: int,
        node: str,
        limits: tuple[int | None, int | None],
        sample: PodSample,
        now_ms: int,
    ) -> None:
        """Add a reading of one server, with its limits of CPU (millicores) and memory (bytes).

        A server that moved, or has other limits, begins again: its past says nothing about it.
        """
        use = ServerUse(
            rank=rank, node=node, cpu_limit_millis=limits[0], memory_limit_bytes=limits[1]
        )
        for other in [other for other in self._minutes if other.rank == rank and other != use]:
            del self._minutes[other]
        minutes = self._minutes.setdefault(use, {})
        minutes.setdefault(now_ms // MINUTE_MS, []).append(sample)
        for minute in list(minutes)[:-MINUTES]:
            del minutes[minute]

    def use(self, ranks: Collection[int]) -> tuple[ServerUse, ...]:
        """Return the use of those servers of ``ranks`` that were measured, by rank."""
        uses = []
        for server, minutes in sorted(self._minutes.items(), key=lambda item: item[0].rank):
            if server.rank in ranks:
                sums = [[*map(sum, zip(*one, strict=True)), len(one)] for one in minutes.values()]
                memory, cpu = zip(*((m // count, c // count) for m, c, count in sums), strict=True)
                uses.append(replace(server, cpu_millis=cpu, memory_bytes=memory))
        return tuple(uses)
