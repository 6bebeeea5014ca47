"""Less urgent writes wait for bindings in flight, up to a timeout."""

import asyncio

from gangline.scheduler.apply.throttle import BindingsInFlight

SHORT_S = 0.01


async def test_it_is_over_when_the_last_binding_has_ended() -> None:
    rush = BindingsInFlight(pause_s=SHORT_S)
    rush.binding_started()
    rush.binding_started()
    waiting = asyncio.create_task(rush.wait_until_idle(timeout_s=60.0))
    rush.binding_ended()
    await asyncio.sleep(0)
    assert not waiting.done()
    rush.binding_ended()
    await waiting
    assert rush.idle.is_set()


async def test_a_short_pause_does_not_end_a_series() -> None:
    rush = BindingsInFlight(pause_s=SHORT_S)
    rush.binding_started()
    rush.binding_ended()
    rush.binding_started()
    await asyncio.sleep(3 * SHORT_S)
    assert not rush.idle.is_set()
    rush.binding_ended()
    await rush.idle.wait()


async def test_a_pause_does_not_prolong_the_wait() -> None:
    times = [0.0]
    rush = BindingsInFlight(lambda: times[0], pause_s=60.0)
    rush.binding_started()
    rush.binding_ended()
    times[0] = 100.0
    rush.binding_started()
    await rush.wait_until_idle(timeout_s=60.0)


async def test_a_rush_without_end_is_not_waited_for() -> None:
    rush = BindingsInFlight()
    rush.binding_started()
    await rush.wait_until_idle(timeout_s=SHORT_S)
    rush.binding_started()
    assert not rush.idle.is_set()


async def test_writer_waits_for_the_cycle_that_a_change_has_caused() -> None:
    rush = BindingsInFlight(pause_s=SHORT_S)
    rush.cycle_due()
    writing = asyncio.create_task(_write(rush))
    await asyncio.sleep(0)
    rush.binding_started()
    rush.cycle_ended()
    await asyncio.sleep(SHORT_S)
    assert not writing.done()
    rush.binding_ended()
    await writing


async def test_writers_beside_long_bindings_write_one_after_the_other() -> None:
    rush = BindingsInFlight()
    rush.binding_started()
    inside: list[int] = []
    most = 0

    async def write() -> None:
        nonlocal most
        async with rush.turn_to_write(timeout_s=SHORT_S):
            inside.append(1)
            most = max(most, len(inside))
            await asyncio.sleep(0)
            inside.pop()

    await asyncio.gather(*(write() for _ in range(4)))
    assert most == 1
    rush.binding_ended()
    rush.idle.set()
    await asyncio.gather(*(write() for _ in range(4)))
    assert most == 4


async def _write(rush: BindingsInFlight) -> None:
    async with rush.turn_to_write(timeout_s=60.0):
        assert rush.idle.is_set()
