"""Writes of the status of PodGroups. Volcano's own definition has no status subresource."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web

from gangline.api.meta.objects import ObjectMeta
from gangline.api.volcano.scheduling import PodGroup
from gangline.kube.client.client import ApiClient
from gangline.kube.controller.event_recorder import EventRecorder
from gangline.scheduler.apply.throttle import BindingsInFlight
from gangline.scheduler.informers import SchedulerInformers
from gangline.scheduler.queueing import messages
from gangline.scheduler.reporting.reporter import (
    MAX_PODS_WITH_EVENTS,
    MAX_STATUS_DELAY_S,
    PendingReporter,
    count_interval_s,
    message_interval_s,
)
from gangline.scheduler.settings import SchedulerSettings
from gangline.scheduler.types import (
    CycleResult,
    GroupKey,
    NodeName,
    PendingReason,
    PodGroupInfo,
    PodInfo,
    PodKey,
    Reservation,
)
from gangline.scheduler.wire import LeanPod
from unit.kube.fake_server import FakeServer, connected
from unit.scheduler.builders import cluster, group, pod

PATIENCE_S = 60.0
NODES = NodeName("n"), NodeName("m")


class KnownObjects:
    """Objects and state as the informers of a scheduler have them."""

    def __init__(self, *groups: PodGroupInfo, pods: Sequence[PodInfo] = ()) -> None:
        self.state = cluster(*groups, *pods)
        self.objects = {
            info.key: PodGroup(
                metadata=ObjectMeta(
                    name=info.key.removeprefix("d/"), namespace="d", uid="u", resource_version="1"
                )
            )
            for info in groups
        }
        self.groups = self
        self.pods = SimpleNamespace(get=self._pod)

    def _pod(self, namespace: str, name: str) -> LeanPod | None:
        info = self.state.pods.get(PodKey(f"{namespace}/{name}"))
        metadata = ObjectMeta(name=name, namespace=namespace, uid=name)
        return LeanPod(metadata=metadata) if info is not None else None

    def get(self, namespace: str, name: str) -> PodGroup | None:
        return self.objects.get(GroupKey(f"{namespace}/{name}"))


@asynccontextmanager
async def reporting(known: KnownObjects) -> AsyncIterator[tuple[FakeServer, PendingReporter]]:
    """Report about the groups; PodGroups have no status subresource, as Volcano defines them."""
    first_writes = asyncio.Barrier(len(known.objects))

    async def answer(request: web.Request) -> web.Response:
        if "/podgroups/" in request.path and request.path.endswith("/status"):
            # All first writes are in flight when the first of them is answered.
            await first_writes.wait()
            return web.json_response({"reason": "NotFound", "code": 404}, status=404)
        body = await request.json()
        return web.json_response(body, status=201 if request.method == "POST" else 200)

    async with connected() as (server, client), EventRecorder(client, "test") as events:
        server.handle_other = answer
        reporter = PendingReporter(
            client,
            cast(SchedulerInformers, known),
            events,
            SchedulerSettings(),
            BindingsInFlight(),
        )
        task = asyncio.create_task(reporter.controller.run())
        async with asyncio.timeout(PATIENCE_S):
            yield server, reporter
        task.cancel()


async def test_concurrent_first_writes_find_that_groups_have_no_status_subresource() -> None:
    names = ("a", "b", "c")
    known = KnownObjects(*(group(name, 1) for name in names))
    async with reporting(known) as (server, reporter):
        for name in names:
            reporter.group_changed(GroupKey(f"d/{name}"))
        written: dict[str, str] = {}
        while len(written) < len(names):
            await asyncio.sleep(0)
            written = {
                seen.path.rpartition("/")[2]: seen.json()["status"]["phase"]
                for seen in server.seen
                if seen.method == "PATCH" and not seen.path.endswith("/status")
            }
    assert written == dict.fromkeys(names, "Inqueue")


async def test_gang_whose_pods_are_gated_has_a_condition_and_an_event() -> None:
    gated = [pod(f"p{n}", group="g", is_gated=True) for n in range(2)]
    known = KnownObjects(group("g", 2), pods=gated)
    async with reporting(known) as (server, reporter):
        reporter.group_changed(GroupKey("d/g"))
        while not any(seen.method == "POST" for seen in server.seen):
            await asyncio.sleep(0)
        (event,) = (seen.json() for seen in server.seen if seen.method == "POST")
        (status,) = (
            seen.json()["status"]
            for seen in server.seen
            if seen.method == "PATCH" and seen.path.endswith("/g")
        )
    assert (event["type"], event["reason"]) == ("Warning", "Unschedulable")
    assert {
        (condition["type"], condition["status"], condition["reason"])
        for condition in status["conditions"]
    } >= {("Unschedulable", "True", messages.SCHEDULING_GATED)}
    assert event["message"] == status["conditions"][0]["message"]


async def test_pods_of_a_large_gang_have_conditions_and_only_its_group_has_an_event() -> None:
    sizes = {"large": MAX_PODS_WITH_EVENTS + 1, "small": 2}
    pods = [pod(f"{name}-{n}", group=name) for name, size in sizes.items() for n in range(size)]
    known = KnownObjects(*(group(name, size) for name, size in sizes.items()), pods=pods)
    async with reporting(known) as (server, reporter):
        reasons = [
            PendingReason(
                messages.NOT_ENOUGH_RESOURCES,
                "no node is free",
                tuple((info.key, "no node is free") for info in pods if info.group == f"d/{name}"),
                GroupKey(f"d/{name}"),
            )
            for name in sizes
        ]
        reporter.set_result(CycleResult(pending_reasons=tuple(reasons)))
        events, patched = set[str](), set[str]()
        while len(patched) < len(pods) or len(events) < len(sizes) + sizes["small"]:
            await asyncio.sleep(0)
            for seen in server.seen:
                if seen.path.endswith("/events"):
                    events.add(seen.json()["involvedObject"]["name"])
                elif "/pods/" in seen.path:
                    patched.add(seen.path)
    assert events == {"large", "small", "small-0", "small-1"}


@pytest.mark.parametrize("seed", range(10))
def test_objects_are_checked_whose_reason_or_nominated_node_differs_from_the_last_cycle(
    seed: int,
) -> None:
    random = Random(seed)
    reporter = PendingReporter(
        cast(ApiClient, None),
        cast(SchedulerInformers, KnownObjects()),
        cast(EventRecorder, None),
        SchedulerSettings(),
        BindingsInFlight(),
    )
    reasons = [
        PendingReason(code, text, ((PodKey(f"d/{name}-0"), text),), GroupKey(f"d/{name}"))
        for name in "abc"
        for code in (messages.NOT_ENOUGH_PODS, messages.NOT_ENOUGH_RESOURCES)
        for text in ("1", "1", "2")
    ]
    before: dict[tuple[str, str], object] = {}
    for _ in range(50):
        chosen = {one.group: one for one in random.choices(reasons, k=random.randrange(4))}
        held = Reservation(((PodKey("d/a-0"), random.choice(NODES)),), preempting=True)
        checked: set[object] = set()
        reporter.controller.queue = cast(Any, checked)
        reporter.set_result(
            CycleResult(pending_reasons=(*chosen.values(),), reservations={"r": held})
        )
        after: dict[tuple[str, str], object] = {}
        for key, reason in chosen.items():
            assert key is not None
            ((member, _),) = reason.pods
            after["PodGroup", key] = reason
            after["Pod", member] = reason, dict(held.nodes).get(member)
        differ = {one for one in before.keys() | after.keys() if before.get(one) != after.get(one)}
        assert checked == {one for one in differ if one[0] == "PodGroup" or one in after}
        before = after


@pytest.mark.parametrize(("reports", "interval_s"), [(1, 10.0), (1_000, 10.0), (20_000, 200.0)])
def test_messages_of_many_pending_pods_are_updated_less_often(
    reports: int, interval_s: float
) -> None:
    assert message_interval_s(10.0, reports) == interval_s


def test_numbers_of_running_pods_are_updated_less_often_while_pods_are_bound() -> None:
    assert count_interval_s(1.0, is_binding=False) == 1.0
    assert count_interval_s(1.0, is_binding=True) == MAX_STATUS_DELAY_S
