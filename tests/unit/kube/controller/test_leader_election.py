"""Leader election against a server that detects conflicts, in virtual time."""

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import msgspec
import pytest
from aiohttp import web

from gangline.api.core.core import Lease, LeaseSpec
from gangline.api.meta.objects import ObjectMeta
from gangline.kube.client.client import ApiClient
from gangline.kube.config.config import ClusterConfig
from gangline.kube.controller.leader_election import (
    LeaderElectionTiming,
    LeaderElector,
    LeaseObservation,
    observe_lease,
)
from unit.kube.fake_server import FakeServer, failing, hanging_up, serve, status_answer
from unit.kube.virtual_clock import virtual_time

PATH = "/apis/coordination.k8s.io/v1/namespaces/ns/leases"


class LeaseServer(FakeServer):
    """Stores one lease, as an API server does: a write needs the revision it was based on."""

    lease: dict | None = None

    async def read(self, request):
        return web.json_response(self.lease) if self.lease else status_answer(404, "NotFound")

    async def write(self, request):
        body = await request.json()
        if request.method == "POST" and self.lease is not None:
            return status_answer(409, "AlreadyExists")
        if request.method == "PUT":
            if self.lease is None:
                return status_answer(404, "NotFound")
            if body["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
                return status_answer(409, "Conflict")
        self.store(body)
        return web.json_response(self.lease)

    def store(self, body):
        self.revision += 1
        body["metadata"]["resourceVersion"] = str(self.revision)
        self.lease = body

    @property
    def holder(self):
        return self.lease["spec"].get("holderIdentity", "") if self.lease else ""


class Team:
    """Candidates that each run when they lead; two at once is what must never happen."""

    def __init__(self, server):
        self.server = server
        self.leading = []
        self.terms = []
        self.tasks = {}
        self.clients = {}
        self.electors = {}
        self.ends = {}

    async def join(self, name, lead=None):
        client = await ApiClient(ClusterConfig(self.server.url)).__aenter__()
        self.clients[name] = client
        elector = self.electors[name] = LeaderElector(client, "lock", "ns", name)
        self.tasks[name] = asyncio.create_task(elector.run(lead or (lambda: self.lead(name))))

    async def lead(self, name):
        assert not self.leading, f"{name} and {self.leading} lead at once"
        self.leading.append(name)
        self.terms.append(name)
        try:
            await self.ends.setdefault(name, asyncio.Event()).wait()
        finally:
            self.leading.remove(name)

    async def leave(self, name):
        self.tasks[name].cancel()
        await asyncio.gather(self.tasks[name], return_exceptions=True)

    async def close(self):
        for name in self.tasks:
            await self.leave(name)
            await self.clients[name].__aexit__()


@asynccontextmanager
async def team():
    server = LeaseServer()
    for method, path in [("GET", f"{PATH}/lock"), ("PUT", f"{PATH}/lock"), ("POST", PATH)]:
        server.routes[method, path] = server.read if method == "GET" else server.write
    runner = await serve(server)
    members = Team(server)
    try:
        yield members
    finally:
        await members.close()
        await runner.cleanup()


@virtual_time
async def test_of_several_candidates_one_leads():
    async with team() as members:
        for name in "abc":
            await members.join(name)
        await asyncio.sleep(60)
        assert len(members.leading) == 1
        assert len(members.terms) == 1
        assert members.server.holder == members.leading[0]


@virtual_time
async def test_leader_that_stops_releases_the_lease():
    async with team() as members:
        await members.join("a")
        await asyncio.sleep(5)
        await members.join("b")
        await asyncio.sleep(5.5)  # between two attempts of b
        await members.leave("a")
        assert members.server.holder == ""
        await asyncio.sleep(3)
        assert members.leading == ["b"]
        assert members.server.lease["spec"]["leaseTransitions"] == 1


@virtual_time
async def test_stopped_leader_may_not_write_until_it_has_renewed(monkeypatch):
    loop, stopped_s, allowed = asyncio.get_running_loop(), 0.0, []
    clock = "gangline.kube.controller.leader_election.elapsed_time_s"
    monkeypatch.setattr(clock, lambda: loop.time() + stopped_s)

    async def lead():
        elector = members.electors["a"]
        allowed.append(elector.may_write)
        nonlocal stopped_s
        stopped_s = 20.0  # the process is stopped here, and the loop does not notice
        allowed.append(elector.may_write)
        await asyncio.sleep(3)
        allowed.append(elector.may_write)

    async with team() as members:
        await members.join("a", lead=lead)
        await members.tasks["a"]
        assert allowed == [True, False, True]
        assert not members.electors["a"].may_write  # the lease is released


@virtual_time
async def test_work_that_fails_passes_its_error_on_and_frees_the_lease():
    async def broken():
        raise ZeroDivisionError("a bug")

    async with team() as members:
        await members.join("a", lead=broken)
        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(members.tasks["a"], 5)
        assert members.server.holder == ""


@virtual_time
async def test_a_leader_that_vanished_is_replaced_after_its_lease():
    async with team() as members:
        members.server.store(
            {
                "metadata": {"name": "lock"},
                "spec": {"holderIdentity": "gone", "renewTime": None},
            }
        )
        await members.join("a")
        await asyncio.sleep(14)
        assert members.leading == []
        await asyncio.sleep(5)
        assert members.leading == ["a"]


@virtual_time
async def test_a_leader_cut_off_from_the_server_stops_before_another_can_start():
    async with team() as members:
        await members.join("a")
        await asyncio.sleep(5)
        loop = asyncio.get_running_loop()
        began = loop.time()
        proper = members.server.routes["PUT", f"{PATH}/lock"]
        # Only the first candidate is cut off: it is the one that writes now.
        members.server.routes["PUT", f"{PATH}/lock"] = hanging_up
        while members.leading:
            await asyncio.sleep(0.2)
        assert 8 <= loop.time() - began <= 13
        members.server.routes["PUT", f"{PATH}/lock"] = proper
        await members.join("b")
        await asyncio.sleep(30)
        assert len(members.leading) == 1


@pytest.mark.parametrize("fault", [hanging_up, failing(500, "InternalError"), failing(503, "x")])
@virtual_time
async def test_a_short_trouble_does_not_cost_the_leadership(fault):
    async with team() as members:
        await members.join("a")
        await asyncio.sleep(5)
        members.server.faults += [fault] * 3
        await asyncio.sleep(60)
        assert members.terms == ["a"]


@virtual_time
async def test_an_answer_that_was_lost_is_not_taken_for_a_rival():
    async with team() as members:
        await members.join("a")
        await asyncio.sleep(5)
        # A person annotated the lease: our next write conflicts, but the holder is still us.
        members.server.store(members.server.lease)
        await asyncio.sleep(30)
        assert members.terms == ["a"]


@virtual_time
async def test_a_lease_taken_by_force_ends_the_term():
    async with team() as members:
        await members.join("a")
        await asyncio.sleep(5)
        taken = msgspec.json.decode(msgspec.json.encode(members.server.lease))
        taken["spec"]["holderIdentity"] = "other"
        members.server.store(taken)
        await asyncio.sleep(5)
        assert members.leading == []
        assert members.server.holder == "other"
        await asyncio.sleep(30)
        assert members.leading == ["a"]


@virtual_time
async def test_deleted_lease_ends_the_term_and_is_recreated():
    async with team() as members:
        await members.join("a")
        await asyncio.sleep(5)
        members.server.lease = None
        await asyncio.sleep(30)
        assert members.leading == ["a"]
        assert members.terms == ["a", "a"]


def lease(holder, version, duration=15):
    spec = LeaseSpec(holder_identity=holder, lease_duration_seconds=duration)
    return Lease(metadata=ObjectMeta(name="lock", resource_version=version), spec=spec)


def test_a_lease_ages_from_when_we_saw_it_change_and_not_by_its_own_clock():
    first = observe_lease(lease("x", "1"), None, now=100, default_duration_s=9)
    assert first == LeaseObservation("x", "1", 15, 100)
    assert observe_lease(lease("x", "1"), first, now=114, default_duration_s=9) is first
    assert not first.has_expired(115)
    assert first.has_expired(115.1)
    assert observe_lease(lease("x", "2"), first, now=114, default_duration_s=9).observed_at == 114


def test_lease_without_a_holder_is_acquired():
    assert observe_lease(lease("", "1"), None, now=0, default_duration_s=9).has_expired(0)
    assert observe_lease(lease("x", "1", None), None, now=0, default_duration_s=9).duration_s == 9


@pytest.mark.parametrize(
    ("duration", "deadline", "retry"), [(10, 10, 2), (15, 10, 10), (15, 20, 2)]
)
def test_timings_under_which_two_could_lead_are_refused(duration, deadline, retry):
    with pytest.raises(ValueError, match="two replicas could lead"):
        LeaderElectionTiming(duration, deadline, retry)


@virtual_time
async def test_times_are_written_as_kubernetes_reads_them():
    async with team() as members:
        full_second = datetime(2026, 1, 1, tzinfo=UTC)
        async with ApiClient(ClusterConfig(members.server.url)) as client:
            elector = LeaderElector(client, "lock", "ns", "a", now=lambda: full_second)

            async def work():
                assert members.server.lease["spec"]["renewTime"] == "2026-01-01T00:00:00.000001Z"

            await elector.run(work)
