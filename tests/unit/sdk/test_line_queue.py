"""The line queue: order, batches, and back-pressure on readers."""

import asyncio

from gangline.sdk.logs import LineQueue


async def test_all_queued_lines_form_one_batch() -> None:
    queue: LineQueue[str] = LineQueue()
    batches = queue.batches()
    for line in ("a", "b", "c"):
        await queue.put(line)
    assert await anext(batches) == ["a", "b", "c"]
    await queue.put("d")
    assert await anext(batches) == ["d"]
    await queue.put("e")
    queue.close()
    assert [batch async for batch in batches] == [["e"]]


async def test_an_empty_line_is_not_the_end() -> None:
    queue: LineQueue[str] = LineQueue()
    for line in ("a", "", "b"):
        await queue.put(line)
    queue.close()
    assert [batch async for batch in queue.batches()] == [["a", "", "b"]]


async def test_readers_wait_for_a_slow_taker_and_nothing_is_lost() -> None:
    queue: LineQueue[tuple[int, int]] = LineQueue(5)

    async def read(reader: int) -> None:
        for number in range(100):
            await queue.put((reader, number))

    async def read_all() -> None:
        await asyncio.gather(*(read(reader) for reader in range(3)))
        queue.close()

    reading = asyncio.create_task(read_all())
    taken: list[tuple[int, int]] = []
    async for batch in queue.batches():
        assert 0 < len(batch) <= 5
        taken += batch
    await reading
    for reader in range(3):
        assert [number for of, number in taken if of == reader] == list(range(100))


async def test_closing_full_queue_does_not_wait() -> None:
    queue: LineQueue[int] = LineQueue(2)
    for number in range(2):
        await queue.put(number)
    queue.close()
    assert [batch async for batch in queue.batches()] == [[0, 1]]


async def test_waiting_consumer_is_woken_by_close() -> None:
    queue: LineQueue[int] = LineQueue()

    async def take() -> list[list[int]]:
        return [batch async for batch in queue.batches()]

    waiting = asyncio.create_task(take())
    await asyncio.sleep(0)
    queue.close()
    assert await waiting == []
