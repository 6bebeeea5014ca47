"""Evictions of many pods are sent some at a time."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gangline.api.meta.objects import Status
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import TooManyRequests
from gangline.scheduler.apply import evictor
from gangline.scheduler.apply.evictor import AT_ONCE, Evictor, SavesBeforeEviction
from gangline.scheduler.types import GangId, NodeName, PodEviction
from unit.scheduler.builders import cluster, node, pod

PODS = 4 * AT_ONCE


class RecordingClient:
    """Answers in a later turn of the event loop; refuses evictions of some pods."""

    def __init__(self, refused: frozenset[str] = frozenset()) -> None:
        self.refused = refused
        self.sent: list[tuple[str, str]] = []
        self.in_flight = self.most = 0

    async def patch(self, _: object, name: str, *__: object, **___: Any) -> None:
        await self._send("condition", name)

    async def evict(self, name: str, _: str) -> None:
        await self._send("eviction", name)
        if name in self.refused:
            raise TooManyRequests(Status(code=429))

    async def _send(self, what: str, name: str) -> None:
        self.sent.append((what, name))
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        await asyncio.sleep(0)
        self.in_flight -= 1


async def evict_all(client: RecordingClient, evicted: list[str]) -> None:
    """Evict ``PODS`` pods; those that were evicted are added to ``evicted``."""
    pods = [pod(f"p{index}", on="a") for index in range(PODS)]
    evictions = [
        PodEviction(info.key, info.uid, NodeName("a"), None, GangId("d/urgent"), "urgent")
        for info in pods
    ]
    saves = SimpleNamespace(hold_back=list, eviction_undone=lambda _: None)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        Evictor(
            cast(ApiClient, client),
            cluster(node("a"), *pods),
            tasks,
            saves=cast(SavesBeforeEviction, saves),
            evicted=lambda eviction: evicted.append(eviction.pod),
            refused=lambda: None,
        ).evict(evictions)


async def test_first_pods_of_many_are_evicted_before_all_have_conditions() -> None:
    client, evicted = RecordingClient(), list[str]()
    await evict_all(client, evicted)
    assert sorted(evicted) == sorted(f"d/p{index}" for index in range(PODS))
    assert client.most == AT_ONCE
    assert client.sent[: 2 * AT_ONCE] == [
        *(("condition", f"p{index}") for index in range(AT_ONCE)),
        *(("eviction", f"p{index}") for index in range(AT_ONCE)),
    ]


async def test_refused_evictions_delay_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evictor, "SETTLE_S", 3600.0)
    client = RecordingClient(frozenset(f"p{index}" for index in range(AT_ONCE)))
    evicted: list[str] = []
    work = asyncio.create_task(evict_all(client, evicted))
    while len(evicted) < PODS - AT_ONCE and not work.done():
        await asyncio.sleep(0)
    work.cancel()
    assert len(evicted) == PODS - AT_ONCE
