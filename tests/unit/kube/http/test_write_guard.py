"""Writes of a leader whose lease may have passed on are not sent; reads and others' writes are."""

import asyncio
from collections.abc import Awaitable
from contextvars import Context
from typing import TypeVar

import pytest

from gangline.kube.write_guard import LeadershipExpired, guarded_context
from unit.kube.fake_server import THINGS, connected

T = TypeVar("T")


async def inside(context: Context, work: Awaitable[T]) -> T:
    """Await in a task that is started by a task of this context."""

    async def start() -> T:
        return await asyncio.ensure_future(work)

    return await asyncio.get_running_loop().create_task(start(), context=context)


async def test_only_writes_of_the_former_leader_are_refused() -> None:
    leads = True
    context = guarded_context(lambda: leads)
    async with connected() as (server, client):
        await server.put("a")
        change = {"metadata": {"labels": {"x": "1"}}}
        await inside(context, client.patch(THINGS, "a", change, "default"))
        leads = False
        for write in (
            client.patch(THINGS, "a", change, "default"),
            client.create(THINGS, {"metadata": {"name": "b"}}, "default"),
            client.delete(THINGS, "a", "default"),
        ):
            with pytest.raises(LeadershipExpired):
                await inside(context, write)
        await inside(context, client.get(THINGS, "a", "default"))
        assert len((await inside(context, client.list(THINGS, "default"))).items) == 1
        await client.delete(THINGS, "a", "default")  # not guarded


async def test_guard_is_asked_when_a_connection_is_there() -> None:
    """The time to connect counts: the first answer of the guard may be too old."""
    answers = iter([False])
    async with connected() as (_, client):
        with pytest.raises(LeadershipExpired):
            await inside(
                guarded_context(lambda: next(answers)),
                client.create(THINGS, {"metadata": {"name": "b"}}, "default"),
            )
        assert not (await client.list(THINGS, "default")).items
