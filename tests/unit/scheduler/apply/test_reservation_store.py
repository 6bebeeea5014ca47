"""Stored reservations are read back unchanged, or not at all."""

import asyncio
from typing import Any

import msgspec
import pytest
from aiohttp import web

from gangline.api.volcano.scheduling import RESERVED_ANNOTATION, PodGroup
from gangline.scheduler.apply.reservation_store import (
    ReservationStore,
    encode_reservation,
    read_reservation,
)
from gangline.scheduler.types import GroupKey, NodeName, PodKey, Reservation
from unit.kube.fake_server import connected
from unit.scheduler.builders import group


def noted(text: str) -> PodGroup:
    annotations = {RESERVED_ANNOTATION: text} if text else {}
    raw = {"metadata": {"name": "g", "namespace": "d", "annotations": annotations}}
    return msgspec.convert(raw, PodGroup)


def test_a_promise_reads_back_as_it_was_written() -> None:
    places = ((PodKey("d/p0"), NodeName("a")), (PodKey("d/p1"), NodeName("b")))
    promise = Reservation(places, preempting=True, created_at=1_000.0)
    assert read_reservation(noted(encode_reservation(promise))) == promise


@pytest.mark.parametrize("text", ["", "{", "[]", '{"since": "soon"}', '{"nodes": {}}'])
def test_unreadable_reservation_is_ignored(text: str) -> None:
    assert read_reservation(noted(text)) is None


def reservation(pods: int) -> Reservation:
    places = tuple((PodKey(f"d/g-{n:06d}"), NodeName("node")) for n in range(pods))
    return Reservation(places, preempting=True, created_at=1_000.0)


async def test_reservation_that_is_too_large_for_an_annotation_is_removed_and_not_retried() -> None:
    written: asyncio.Queue[tuple[str, str | None]] = asyncio.Queue()

    async def patch(request: web.Request) -> web.Response:
        body: dict[str, Any] = await request.json()
        name = request.path.rpartition("/")[2]
        written.put_nowait((name, body["metadata"]["annotations"][RESERVED_ANNOTATION]))
        return web.json_response({"metadata": {"name": name, "namespace": "d"}})

    groups = {GroupKey(f"d/{name}"): group(name, 1) for name in ("g", "later")}
    path = "/apis/scheduling.volcano.sh/v1beta1/namespaces/d/podgroups"
    async with connected() as (server, client), asyncio.timeout(60):
        for name in ("g", "later"):
            server.routes["PATCH", f"{path}/{name}"] = patch
        store = ReservationStore(client)
        task = asyncio.create_task(store.run())
        of_group: list[bool] = []
        for turn, pods in enumerate((12_500, 2, 12_500, 12_501, 3)):
            reservations = {"d/g": reservation(pods), "d/later": reservation(turn)}
            store.store(reservations, groups)
            # Groups are written in the order of their names.
            while (write := await written.get())[0] != "later":
                of_group.append(write[1] is not None)
        task.cancel()
    assert of_group == [True, False, True]
