"""Less urgent writes wait for bindings in flight, up to a timeout."""

import asyncio

from gangline.scheduler.rush import Rush

SHORT_S = 0.01


async def test_writers_do_not_wait_without_bindings() -> None:
    await Rush().over(within_s=60.0)


async def test_it_is_over_when_the_last_binding_has_ended() -> None:
    rush = Rush()
    rush.begun()
    rush.begun()
    waiting = asyncio.create_task(rush.over(within_s=60.0))
    rush.ended()
    await asyncio.sleep(0)
    assert not waiting.done()
    rush.ended()
    await waiting
    assert rush.resting.is_set()


async def test_a_rush_without_end_is_not_waited_for() -> None:
    rush = Rush()
    rush.begun()
    await rush.over(within_s=SHORT_S)
    rush.begun()
    assert not rush.resting.is_set()


async def test_the_wait_counts_from_the_first_of_the_bindings() -> None:
    times = [0.0]
    rush = Rush(lambda: times[0])
    rush.begun()
    times[0] = 100.0
    rush.begun()
    await rush.over(within_s=60.0)
