"""CPU and memory of parameter servers by the minute, from readings of the metrics API. Pure."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from gangline.brain.advisers.view import ServerUse
from gangline.brain.collection.usage import PodSample

MINUTE_MS = 60_000
MINUTES = 120
"""Minutes of one server that are kept: advice on idle servers looks back an hour."""


@dataclass(slots=True)
class _Minute:
    at_ms: int
    cpu_millis: int
    memory_bytes: int
    samples: int = 1


@dataclass(slots=True)
class _Server:
    node: str = ""
    cpu_limit_millis: int | None = None
    memory_limit_bytes: int | None = None
    minutes: deque[_Minute] = field(default_factory=lambda: deque(maxlen=MINUTES))


class ServerTable:
    """The parameter servers of one job."""

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
        known = self._servers.get(rank)
        place = (node, *limits)
        if known is None or place != (known.node, known.cpu_limit_millis, known.memory_limit_bytes):
            known = self._servers[rank] = _Server(node, *limits)
        at_ms = now_ms - now_ms % MINUTE_MS
        last = known.minutes[-1] if known.minutes else None
        if last is None or last.at_ms != at_ms:
            known.minutes.append(_Minute(at_ms, sample.cpu_millis, sample.memory_bytes))
            return
        last.cpu_millis += sample.cpu_millis
        last.memory_bytes += sample.memory_bytes
        last.samples += 1

    def keep(self, ranks: Iterable[int]) -> None:
        """Forget all servers but these."""
        kept = set(ranks)
        self._servers = {rank: one for rank, one in self._servers.items() if rank in kept}

    def use(self) -> tuple[ServerUse, ...]:
        """Return the use of each server, by rank."""
        return tuple(
            ServerUse(
                rank=rank,
                node=server.node,
                cpu_limit_millis=server.cpu_limit_millis,
                memory_limit_bytes=server.memory_limit_bytes,
                cpu_millis=tuple(each.cpu_millis // each.samples for each in server.minutes),
                memory_bytes=tuple(each.memory_bytes // each.samples for each in server.minutes),
            )
            for rank, server in sorted(self._servers.items())
        )
