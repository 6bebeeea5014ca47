"""Long work in an event loop gives way: many objects, many passes, tasks that share their turns."""

from collections.abc import Callable

import pytest

from gangline.api.meta.objects import ObjectMeta
from gangline.kube.controller.controller import Controller, ReconcileDone
from gangline.kube.informers.indexer import Indexer
from unit.kube.fake_server import Thing
from unit.kube.turn_taking import longest_run, slow_clock

COUNT = 100


@pytest.fixture(autouse=True)
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    slow_clock(monkeypatch)


async def test_other_tasks_run_while_a_long_list_is_stored() -> None:
    things = [Thing(metadata=ObjectMeta(name=str(number))) for number in range(COUNT)]

    async def store(step: Callable[[], None]) -> None:
        indexer = Indexer[Thing]({})
        indexer.add_listener(lambda old, new: step())
        await indexer.replace(things)
        await indexer.replace([])

    assert 0 < await longest_run(store) <= 3


@pytest.mark.parametrize("workers", [1, 4])
async def test_other_tasks_run_between_passes_that_wait_for_nothing(workers: int) -> None:
    async def work(step: Callable[[], None]) -> None:
        async def look(key: int) -> ReconcileDone:
            step()
            if key == COUNT - 1:
                controller.queue.stop()
            return ReconcileDone()

        controller = Controller[int]("turns", look, workers=workers)
        for number in range(COUNT):
            controller.queue.add(number)
        await controller.run()

    assert 0 < await longest_run(work) <= 2 + workers
