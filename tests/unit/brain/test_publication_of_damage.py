"""A damaged history is an event, and where ``gangline doctor`` reads it, also later in a run."""

import asyncio
from typing import Any, ClassVar

import pytest

from gangline.api.core.core import ConfigMap
from gangline.api.meta.objects import ObjectMeta
from gangline.brain import main
from gangline.brain.settings import BrainSettings
from gangline.kube.probes import Address


class Cluster:
    """Stands for the API server: keeps the ConfigMap and counts its writes."""

    def __init__(self) -> None:
        self.data: dict[str, str] = {}
        self.writes = 0

    async def create(self, _resource: Any, body: dict[str, Any], _namespace: str) -> ConfigMap:
        self.data, self.writes = body["data"], self.writes + 1
        return ConfigMap(metadata=ObjectMeta(name="gangline-brain"))

    async def get(self, *_: Any) -> ConfigMap:
        return ConfigMap(metadata=ObjectMeta(name="gangline-brain"), data=self.data)


class Store:
    damage = ""


class Recorder:
    events: ClassVar[list[str]] = []

    def __init__(self, *_: Any) -> None:
        pass

    async def __aenter__(self) -> "Recorder":
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    def event(self, _involved: object, _type: str, reason: str, message: str) -> None:
        self.events.append(f"{reason}: {message}")


async def test_damage_is_published_once_when_it_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "EventRecorder", Recorder)
    monkeypatch.setattr(main, "FLUSH_S", 0)
    monkeypatch.setattr(Recorder, "events", [])
    cluster, store = Cluster(), Store()
    settings = BrainSettings(database="", api_address=Address("127.0.0.1", 1))
    given: Any = (cluster, settings, store)
    task = asyncio.create_task(main._publish(*given, 8090))
    while not cluster.writes:
        await asyncio.sleep(0)
    assert cluster.data == {"url": "http://127.0.0.1:8090", "problem": ""}
    store.damage = "brain.db is damaged"
    while cluster.writes < 2:
        await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0)
    task.cancel()
    assert (cluster.data["problem"], cluster.writes) == ("brain.db is damaged", 2)
    assert Recorder.events == ["HistoryDamaged: brain.db is damaged"]


async def test_a_recorder_leaves_the_address_to_a_brain_that_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(main, "EventRecorder", Recorder)
    monkeypatch.setattr(main, "FLUSH_S", 0)
    other = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    cluster = Cluster()
    cluster.data = {"url": f"http://127.0.0.1:{other.sockets[0].getsockname()[1]}"}
    settings = BrainSettings(database="", api_address=Address("127.0.0.1", 1), advises=False)
    given: Any = (cluster, settings, Store())
    task = asyncio.create_task(main._publish(*given, 8090))
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert cluster.writes == 0
    other.close()
    while not cluster.writes:
        await asyncio.sleep(0.001)
    assert cluster.data["url"] == "http://127.0.0.1:8090"
    task.cancel()
