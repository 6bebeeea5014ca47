"""CPU and memory of pods from the metrics API, and of parameter servers by the minute."""

import asyncio
from bisect import insort
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
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
    receive: Callable[[Mapping[tuple[str, str], PodSample]], None],
    every_s: float = POLL_S,
) -> None:
    """Call ``receive`` with the readings by namespace and pod, until cancelled."""
    while True:
        usage = await pod_usage(client, None)
        receive(
            {
                pod: PodSample(round(used.memory), round(1000 * used.cpu))
                for pod, used in usage.items()
            }
        )
        await asyncio.sleep(every_s)


MINUTE_MS = 60_000
MINUTES = 120
"""Minutes of one server that are kept: advice on idle servers looks back an hour."""


@dataclass(slots=True)
class _Server:
    use: ServerUse
    """Without samples."""
    minutes: dict[int, list[PodSample]] = field(default_factory=dict)

    def mean(self, name: str) -> tuple[int, ...]:
        return tuple(
            sum(getattr(sample, name) for sample in samples) // len(samples)
            for samples in self.minutes.values()
        )


class ServerTable:
    def __init__(self) -> None:
        self._servers: dict[int, _Server] = {}

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
        server = self._servers.get(rank)
        if server is None or server.use != use:
            server = self._servers[rank] = _Server(use)
        server.minutes.setdefault(now_ms // MINUTE_MS, []).append(sample)
        for minute in list(server.minutes)[:-MINUTES]:
            del server.minutes[minute]

    def use(self, ranks: Collection[int]) -> tuple[ServerUse, ...]:
        """Return the use of those servers of ``ranks`` that were measured, by rank."""
        return tuple(
            replace(
                server.use,
                cpu_millis=server.mean("cpu_millis"),
                memory_bytes=server.mean("memory_bytes"),
            )
            for rank, server in sorted(self._servers.items())
            if rank in ranks
        )
