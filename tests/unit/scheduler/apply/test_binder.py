"""Failed bindings are retried while the pod stays assumed, or the pod is pending at once."""

import asyncio
from dataclasses import dataclass, field

import pytest

from gangline.scheduler.apply.binder import Binder
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.types import NodeName, PodBinding, PodKey
from unit.kube.fake_server import Answer, FakeServer, Seen, answering, connected, failing
from unit.scheduler.builders import cluster, node, pod

P = PodKey("d/p")
BINDING = PodBinding(P, "uid-p", NodeName("a"))
DONE = answering({"kind": "Status"}, 201)
PATH = "/api/v1/namespaces/d/pods/p/binding"


@dataclass
class Outcome:
    bound: list[PodBinding] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)
    server: FakeServer = field(default_factory=FakeServer)

    @property
    def sent(self) -> list[Seen]:
        return [seen for seen in self.server.seen if seen.path == PATH]


async def bind(state: SchedulerCache, proper: Answer, *faults: Answer) -> Outcome:
    """Carry one binding out to its end, on a server that answers so after these faults."""
    outcome = Outcome()
    async with connected() as (server, client), asyncio.TaskGroup() as tasks:
        outcome.server = server
        server.routes["POST", PATH] = proper
        server.faults += faults
        binder = Binder(
            client,
            state,
            tasks,
            at_once=4,
            bound=outcome.bound.append,
            released=outcome.pauses.append,
        )
        binder.bind([BINDING])
        assert state.pods[P].node == BINDING.node
    return outcome


@pytest.fixture
def state() -> SchedulerCache:
    return cluster(node("a"), pod("p"))


async def test_a_binding_names_the_pod_by_its_uid(state: SchedulerCache) -> None:
    outcome = await bind(state, DONE)
    assert outcome.bound == [BINDING]
    body = outcome.sent[0].json()
    assert (body["target"]["name"], body["metadata"]["uid"]) == ("a", "uid-p")


async def test_a_server_in_trouble_is_asked_again_while_the_place_is_kept(
    state: SchedulerCache,
) -> None:
    outcome = await bind(state, DONE, failing(500, "InternalError"), failing(504, "Timeout"))
    assert outcome.bound == [BINDING]
    assert state.pods[P].node == "a"
    assert not outcome.pauses


async def test_a_refusal_for_good_is_not_repeated(state: SchedulerCache) -> None:
    outcome = await bind(state, failing(404, "NotFound"))
    assert not outcome.bound
    assert state.pods[P].node is None
    assert len(outcome.sent) == 1
    assert state.refused_bindings[P].message.startswith("Binding d/p to a was refused: ")
    assert outcome.pauses == [1]


async def test_each_refusal_doubles_the_pause_until_a_binding_succeeds(
    state: SchedulerCache,
) -> None:
    pauses = []
    for _ in range(7):
        pauses += (await bind(state, failing(403, "Forbidden"))).pauses
    assert pauses == [1, 2, 4, 8, 16, 30, 30]
    await bind(state, DONE)
    assert not state.refused_bindings


async def test_refusals_of_a_deleted_pod_are_forgotten(state: SchedulerCache) -> None:
    await bind(state, failing(403, "Forbidden"))
    state.remove_pod(P)
    assert not state.refused_bindings


async def test_a_binding_in_trouble_does_not_hold_up_those_behind_it() -> None:
    names = [f"p-{number}" for number in range(4)]
    state = cluster(node("a"), *(pod(name) for name in names))
    bound: list[PodBinding] = []
    async with connected() as (server, client), asyncio.TaskGroup() as tasks:
        for name in names:
            server.routes["POST", f"/api/v1/namespaces/d/pods/{name}/binding"] = DONE
        server.faults.append(failing(500, "InternalError"))
        binder = Binder(client, state, tasks, at_once=1, bound=bound.append, released=[].append)
        binder.bind([PodBinding(PodKey(f"d/{name}"), "", NodeName("a")) for name in names])
        async with asyncio.timeout(60):
            await binder.in_flight.idle.wait()
    asked = [seen.path.split("/")[-2] for seen in server.seen]
    assert asked == [*names, names[0]]
    assert {binding.pod for binding in bound} == {f"d/{name}" for name in names}


async def test_backlog_is_drained_when_few_bindings_wait_for_a_worker() -> None:
    names = [f"p-{number}" for number in range(6)]
    state = cluster(node("a"), *(pod(name) for name in names))
    bound: list[PodBinding] = []
    async with connected() as (server, client), asyncio.TaskGroup() as tasks:
        for name in names:
            server.routes["POST", f"/api/v1/namespaces/d/pods/{name}/binding"] = DONE
        binder = Binder(client, state, tasks, at_once=1, bound=bound.append, released=[].append)
        await binder.wait_until_drained(timeout_s=60)
        binder.bind([PodBinding(PodKey(f"d/{name}"), "", NodeName("a")) for name in names])
        await binder.wait_until_drained(timeout_s=0)
        assert len(bound) < 4
        await binder.wait_until_drained(timeout_s=60)
        assert 4 <= len(bound) < 6
