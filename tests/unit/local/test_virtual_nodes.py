"""Virtual nodes: annotations of the Node object switch its agent."""

import asyncio

import pytest

from gangline.api.core.core import Node
from gangline.api.meta.objects import ObjectMeta
from gangline.local.virtual_nodes import (
    PARTITIONED_ANNOTATION,
    STOPPED_ANNOTATION,
    NodePower,
    VirtualNode,
    desired_power,
)


@pytest.mark.parametrize(
    ("annotations", "power"),
    [
        ({}, NodePower.ON),
        ({STOPPED_ANNOTATION: "true"}, NodePower.STOPPED),
        ({STOPPED_ANNOTATION: "false"}, NodePower.ON),
        ({PARTITIONED_ANNOTATION: "true"}, NodePower.PARTITIONED),
        ({"gangline.dev/partitioned": "true"}, NodePower.PARTITIONED),
        ({PARTITIONED_ANNOTATION: "true", STOPPED_ANNOTATION: "true"}, NodePower.STOPPED),
    ],
)
def test_annotations_determine_the_power_of_a_node(
    annotations: dict[str, str], power: NodePower
) -> None:
    assert desired_power(Node(metadata=ObjectMeta(annotations=annotations))) is power


class Diary:
    """Agents that record their calls."""

    def __init__(self) -> None:
        self.entries: list[str] = []
        self._changed = asyncio.Condition()
        self.made = 0
        self.break_next = False

    def make(self) -> "DiaryAgent":
        self.made += 1
        return DiaryAgent(self, self.made)

    async def write(self, entry: str) -> None:
        async with self._changed:
            self.entries.append(entry)
            self._changed.notify_all()

    async def until(self, *entries: str) -> None:
        async with asyncio.timeout(5), self._changed:
            await self._changed.wait_for(lambda: self.entries == list(entries))


class DiaryAgent:
    def __init__(self, diary: Diary, number: int) -> None:
        self._diary = diary
        self._number = number

    async def run(self) -> None:
        await self._diary.write(f"run {self._number}")
        if self._diary.break_next:
            raise RuntimeError("broken")
        try:
            await asyncio.Event().wait()
        finally:
            await self._diary.write(f"cut {self._number}")

    async def stop(self, grace_s: float) -> None:
        await self._diary.write(f"stop {self._number} {grace_s:g}")


async def test_a_node_that_has_ended_does_not_boot_again() -> None:
    diary = Diary()
    node = VirtualNode("n", diary.make)
    running = asyncio.create_task(node.run())
    await diary.until("run 1")
    await node.shut_down(2.0)
    node.set_power(NodePower.STOPPED)
    node.set_power(NodePower.ON)
    await asyncio.wait({running}, timeout=0.05)
    assert diary.entries == ["run 1", "cut 1", "stop 1 2"]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_an_agent_that_breaks_breaks_its_node() -> None:
    diary = Diary()
    diary.break_next = True
    with pytest.raises(RuntimeError, match="broken"):
        await VirtualNode("n", diary.make).run()
