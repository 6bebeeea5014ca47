"""Less urgent writes wait for bindings in flight, up to a timeout."""

import asyncio

from gangline.scheduler.apply.throttle import BindingsInFlight

SHORT_S = 0.01


async def test_writers_do_not_wait_without_bindings() -> None:
    await BindingsInFlight().wait_until_idle(timeout_s=60.0)


async def test_it_is_over_when_the_last_binding_has_ended() -> None:
    rush = BindingsInFlight()
    rush.binding_started()
    rush.binding_started()
    waiting = asyncio.create_task(rush.wait_until_idle(timeout_s=60.0))
    rush.binding_ended()
    await asyncio.sleep(0)
    assert not waiting.done()
    rush.binding_ended()
    await waiting
    assert rush.idle.is_set()


async def test_a_rush_without_end_is_not_waited_for() -> None:
    rush = BindingsInFlight()
    rush.binding_started()
    await rush.wait_until_idle(timeout_s=SHORT_S)
    rush.binding_started()
    assert not rush.idle.is_set()


async def test_the_wait_counts_from_the_first_of_the_bindings() -> None:
    times = [0.0]
    rush = BindingsInFlight(lambda: times[0])
    rush.binding_started()
    times[0] = 100.0
    rush.binding_started()
    await rush.wait_until_idle(timeout_s=60.0)
