"""One member of a group, in this process, whose orders a test gives."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import torch.distributed as dist

from gangline.elastic.agent.rendezvous import free_port
from gangline.elastic.agent.store import AgentStore
from gangline.elastic.agent.survivors import CoordinatorService
from gangline.elastic.survivors.coordinator import EpochCoordinator
from gangline.elastic.survivors.messages import Form
from gangline.elastic.trainer import group_links
from gangline.elastic.trainer.survivors import InterruptedStepError, SurvivorGroup
from gangline.elastic.variables import FOLDER_VARIABLE, SLOT_VARIABLE

SILENT = 7


class SilentStore(dist.Store):
    """The store of a member that stops when others know its address, and before it connects."""

    def __init__(self, inner: dist.Store, go_on: threading.Event) -> None:
        super().__init__()
        self._inner, self._go_on = inner, go_on
        self.is_known = threading.Event()

    def set(self, key: str, value: Any) -> None:
        self._inner.set(key, value)
        self.is_known.set()

    def wait(self, *_: object) -> None:
        self._go_on.wait()
        raise RuntimeError("the test has ended")


def be_silent(store: SilentStore, rank: int) -> None:
    with contextlib.suppress(RuntimeError):
        dist.ProcessGroupGloo(store, rank, SILENT + 1, timedelta(seconds=60))


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[int]:
    port = free_port()
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), SLOT_VARIABLE: "0"}
    for name, value in {**variables, FOLDER_VARIABLE: str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    yield port
    if dist.is_initialized():
        dist.destroy_process_group()


async def test_member_without_a_further_group_ends_as_the_consequence_of_a_loss(port: int) -> None:
    store = await AgentStore.listen(port)
    store.append_order(msgspec.json.encode(Form(1, [0], [0], [""])))
    group = await asyncio.to_thread(SurvivorGroup, "gloo")
    with pytest.raises(InterruptedStepError, match="cannot continue: no further group"):
        await asyncio.to_thread(group._next_order, 0.0)
    assert group._inbox is not None
    group._inbox._client._socket.close()
    store.close()


async def test_group_with_members_that_stop_before_they_connect_does_not_wait_long(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_links, "CONNECT_S", 0.5)
    store, go_on = await AgentStore.listen(port), threading.Event()
    store.append_order(msgspec.json.encode(Form(1, [0], [0], [""])))
    group = await asyncio.to_thread(SurvivorGroup, "gloo", timeout=timedelta(seconds=70))
    backend = group._links.group._get_backend(torch.device("cpu"))
    assert backend.options._timeout == timedelta(seconds=70)  # not that of connecting
    if group._links.can_reconfigure:
        pytest.skip("members find each other by addresses that were exchanged before")
    shared = await asyncio.to_thread(group_links._connect_store, "epoch-2")
    await asyncio.to_thread(shared.add, "joined", SILENT)
    peers = [
        SilentStore(dist.PrefixStore("cpu/", dist.PrefixStore("0/", shared)), go_on)
        for _ in range(SILENT)
    ]
    for rank, peer in enumerate(peers, 1):
        threading.Thread(target=be_silent, args=(peer, rank), daemon=True).start()
        await asyncio.to_thread(peer.is_known.wait)
    order = Form(2, [*range(SILENT + 1)], [], [])
    # To those with a greater address it connects, and it waits for a connection of the others.
    with contextlib.suppress(RuntimeError):
        await asyncio.to_thread(group._links.form, order, 0)
    go_on.set()
    assert group._inbox is not None
    group._inbox._client._socket.close()
    store.close()


async def test_member_with_an_abandoned_exchange_forms_the_next_group(port: int) -> None:
    store, coordinator = await AgentStore.listen(port), EpochCoordinator([0])
    service = CoordinatorService(store, coordinator, lambda _: None)
    group = await asyncio.to_thread(SurvivorGroup, "gloo")
    group._links.is_abandoned = True
    service._write(coordinator._form(time.monotonic()))
    await asyncio.to_thread(group._recover)

    assert group.epoch == (3 if group._links.can_reconfigure else 2)
    own = torch.tensor([7])
    assert await asyncio.to_thread(group._links.gather, own) == [own]
    assert group._inbox is not None
    group._inbox._client._socket.close()
    service.close()
    store.close()
