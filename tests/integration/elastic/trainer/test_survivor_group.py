"""One member of a group, in this process, whose orders a test gives."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch.distributed as dist

from gangline.elastic.agent.rendezvous import free_port
from gangline.elastic.agent.store import AgentStore
from gangline.elastic.survivors.messages import Form
from gangline.elastic.trainer.survivors import InterruptedStepError, SurvivorGroup
from gangline.elastic.variables import FOLDER_VARIABLE, SLOT_VARIABLE


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[int]:
    port = free_port()
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), SLOT_VARIABLE: "0"}
    for name, value in {**variables, FOLDER_VARIABLE: str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    yield port
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
