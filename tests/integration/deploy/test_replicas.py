"""Two replicas of operator and scheduler: one writer at any time, whatever happens to one."""

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from gangline.api.resources import (
    CLUSTER_ROLE_BINDINGS,
    NODES,
    PODS,
    PYTORCH_JOBS,
    SERVICE_ACCOUNTS,
)
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import ApiError
from gangline.local import custom_resources
from gangline.local.apiserver.audit import AuditSettings
from gangline.local.apiserver.server import ApiServer, ApiServerSettings
from gangline.local.apiserver.storage.durable_files import Durability
from integration.cluster.embedded import until
from integration.deploy.replicas import Replica, free_port, replicas
from integration.operator.process import kubeconfig_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TIMING = (
    "--leader-elect-lease-duration=4s",
    "--leader-elect-renew-deadline=3s",
    "--leader-elect-retry-period=500ms",
)
COMPONENTS = ("operator", "scheduler")
WRITES = {"create", "update", "patch", "delete", "deletecollection"}


@dataclass
class Site:
    """An API server, two replicas of each component with users of their own, and the audit log."""

    client: ApiClient
    audit: Path
    folder: Path
    kubeconfigs: Mapping[tuple[str, str], Path]
    running: dict[tuple[str, str], Replica] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=count)

    def start(self, component: str, copy: str, *arguments: str) -> Replica:
        log = self.folder / f"{component}-{copy}-{next(self.numbers)}.log"
        options = ("--leader-election-namespace=kube-system",) if component == "operator" else ()
        kubeconfig = self.kubeconfigs[component, copy]
        replica = Replica(component, kubeconfig, log, *TIMING, *options, *arguments)
        self.running[component, copy] = replica
        return replica

    async def leader(self, component: str, *, other_than: str = "") -> str:
        """Wait until a replica leads, and return its letter."""

        async def found() -> str:
            for copy in "ab":
                replica = self.running.get((component, copy))
                if replica and copy != other_than and await replica.leads():
                    return copy
            return ""

        return await until(found, 60, lambda: self.logs(component))

    def logs(self, component: str) -> str:
        return "\n".join(
            replica.log.read_text()[-2000:]
            for (name, _), replica in self.running.items()
            if name == component
        )

    def note(self, what: str, seconds: float) -> None:
        """Report a time; it depends on the machine, so nothing is asserted about it."""
        print(f"{what}: {seconds:.1f} s")

    async def train(self) -> float:
        """Create a job; return the seconds until its pod is bound."""
        name, began = f"job-{next(self.numbers)}", time.monotonic()
        container = {"name": "pytorch", "image": "x"}
        worker = {"replicas": 1, "template": {"spec": {"containers": [container]}}}
        spec = {"pytorchReplicaSpecs": {"Master": worker}}
        manifest = {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "metadata": {"name": name},
            "spec": spec,
        }
        await self.client.create(PYTORCH_JOBS, manifest, "default")

        async def bound() -> bool:
            found = (await self.client.list(PODS, "default")).items
            return any(e.metadata.name == f"{name}-master-0" and e.spec.node_name for e in found)

        await until(bound, 60, lambda: "\n".join(map(self.logs, COMPONENTS)))
        return time.monotonic() - began

    def writes(self, component: str) -> list[dict[str, Any]]:
        """The accepted writes of a component's replicas, in the order in which they arrived."""
        events = map(json.loads, self.audit.read_text().splitlines())
        found = [
            event
            for event in events
            if event["stage"] == "ResponseComplete"
            and event["verb"] in WRITES
            and event["user"]
            .get("username", "")
            .startswith(f"system:serviceaccount:kube-system:{component}-")
        ]
        return sorted(found, key=lambda event: event["requestReceivedTimestamp"])

    def assert_one_writer(self, component: str) -> list[str]:
        """Check that each write came from the holder of the lease; return the holders in turn."""
        holder, holders = "", []
        for event in self.writes(component):
            copy = event["user"]["username"][-1]
            what = event.get("objectRef", {})
            if what.get("resource") == "leases":
                # Without a code the client was killed before it got the response.
                if event["responseStatus"].get("code", 0) // 100 == 2 and copy != holder:
                    holder = copy
                    holders.append(copy)
            else:
                assert copy == holder, (copy, holder, event["verb"], what)
        return holders


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    """The API server with definitions and one node; nothing else runs."""
    audit = tmp_path / "audit.log"
    settings = ApiServerSettings(
        data=tmp_path / "apiserver", durability=Durability.PROCESS, audit=AuditSettings(audit)
    )
    server = ApiServer(settings)
    await server.start()
    try:
        async with ApiClient(server.config, user_agent="gangline-test") as client:
            await custom_resources.install_definitions(client)
            await add_node(client)
            accounts = {
                (component, copy): await account(client, server, f"{component}-{copy}", tmp_path)
                for component in COMPONENTS
                for copy in "ab"
            }
            yield Site(client, audit, tmp_path, accounts)
    finally:
        await server.stop()


async def add_node(client: ApiClient) -> None:
    await client.create(NODES, {"metadata": {"name": "n"}})
    status = {
        "allocatable": {"cpu": "64", "memory": "64Gi", "pods": "1000"},
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    await client.patch(NODES, "n", {"status": status}, subresource="status")


async def account(client: ApiClient, server: ApiServer, name: str, folder: Path) -> Path:
    """A service account with all rights; the audit log names it."""
    await client.create(SERVICE_ACCOUNTS, {"metadata": {"name": name}}, "kube-system")
    binding = {
        "metadata": {"name": name},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "cluster-admin",
        },
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "kube-system"}],
    }
    await client.create(CLUSTER_ROLE_BINDINGS, binding)
    return await kubeconfig_of(
        client, f"kube-system/{name}", server.kubeconfig, folder / f"{name}.kubeconfig"
    )


async def test_one_replica_writes_at_any_time(site: Site) -> None:
    for component in COMPONENTS:
        for copy in "ab":
            site.start(component, copy)
    try:
        leaders = {component: await site.leader(component) for component in COMPONENTS}
        await site.train()
        for component in COMPONENTS:
            leaders[component] = await stop_and_continue(site, component, leaders[component])
        await asyncio.gather(*(kill(site, name, leader) for name, leader in leaders.items()))
        for replica in site.running.values():
            replica.end()
        for component in COMPONENTS:
            for copy in "ab":
                site.start(component, copy)
        await site.train()
        for component in COMPONENTS:
            holders = site.assert_one_writer(component)
            assert len(holders) >= 3, holders
    finally:
        with replicas(*site.running.values()):
            pass


async def stop_and_continue(site: Site, component: str, leader: str) -> str:
    """Stop the leader while it has work; another takes over. It writes nothing when it continues.

    It has work: a job that is created shortly before is in its queue, its caches and its socket.
    """
    stopped, began = site.running[component, leader], time.monotonic()
    stopped.send(signal.SIGSTOP)
    waiting = asyncio.create_task(site.train())
    try:
        successor = await site.leader(component, other_than=leader)
        site.note(f"{component} take-over after SIGSTOP", time.monotonic() - began)
        await waiting
        site.note(f"{component} first binding", time.monotonic() - began)
        written = len(await written_by(site, component, leader))
    finally:
        stopped.send(signal.SIGCONT)

    async def knows() -> bool:
        name = f"gangline-{component}"
        return await stopped.metric("leader_election_master_status", name=name) == 0

    await until(knows, 30, lambda: site.logs(component))
    await site.train()  # it sees this job as well
    assert len(await written_by(site, component, leader)) == written
    return successor


async def written_by(site: Site, component: str, copy: str) -> list[dict[str, Any]]:
    """What a replica has written, except attempts to renew the lease."""
    return [
        event
        for event in site.writes(component)
        if event["user"]["username"].endswith(f"-{copy}")
        and event.get("objectRef", {}).get("resource") != "leases"
    ]


async def kill(site: Site, component: str, leader: str) -> None:
    began = time.monotonic()
    site.running[component, leader].end()
    await site.leader(component, other_than=leader)
    site.note(f"{component} take-over after SIGKILL", time.monotonic() - began)
    await site.train()
    site.note(f"{component} first binding after SIGKILL", time.monotonic() - began)
    site.start(component, leader)


async def test_jobs_are_created_while_no_webhook_answers(site: Site) -> None:
    """It is repaired without a deletion by hand."""
    webhook = webhook_at(free_port())
    replica = site.start("operator", "a", *webhook)
    try:
        await until(lambda: is_reviewed(site), 60, lambda: site.logs("operator"))
        replica.send(signal.SIGSTOP)  # it accepts connections and does not answer
        assert not await is_reviewed(site)
        replica.send(signal.SIGCONT)
        await until(lambda: is_reviewed(site), 60, lambda: site.logs("operator"))
        replica.end()  # nothing listens
        assert not await is_reviewed(site)
        replica = site.start("operator", "a", *webhook)
        await until(lambda: is_reviewed(site), 60, lambda: site.logs("operator"))
    finally:
        replica.send(signal.SIGCONT)
        replica.end()


def webhook_at(port: int) -> tuple[str, ...]:
    return (
        "--webhook=on",
        f"--webhook-bind-address=127.0.0.1:{port}",
        f"--webhook-url=https://127.0.0.1:{port}",
        "--webhook-namespace=kube-system",
    )


async def is_reviewed(site: Site) -> bool:
    """Create an invalid job: refused by the webhook, or stored without it."""
    manifest = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"generateName": "invalid-"},
        "spec": {"pytorchReplicaSpecs": {"Master": {"replicas": 2, "template": {"spec": {
            "containers": [{"name": "pytorch", "image": "x"}]}}}}},
    }  # fmt: skip
    try:
        await site.client.create(PYTORCH_JOBS, manifest, "default")
    except ApiError as error:
        return "webhook" in str(error)
    return False
