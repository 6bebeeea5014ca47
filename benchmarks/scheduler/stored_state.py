"""Many running pods in the state file of an embedded cluster, as copies of a few.

To create 100,000 pods by requests takes most of a run that only needs them to be there. Here the
first job runs on the first node of a cluster; that cluster stops, and copies of the node, the group
and the pods are stored beside them, as if they had been created one after the other.
"""

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from itertools import cycle
from pathlib import Path

from benchmarks.cluster.connection import Clients, Target
from benchmarks.scheduler import bind, fake_kubelets
from benchmarks.scheduler.jobs import NAMESPACE, node, node_name, numbered_job, pod
from gangline.local.apiserver.storage.durable_files import Durability
from gangline.local.apiserver.storage.sqlite import LogRow, StateDatabase

POLL_S = 0.2
STRATEGIC = "application/strategic-merge-patch+json"
PODS, GROUPS = f"/api/v1/namespaces/{NAMESPACE}/pods", f"{bind.GROUPS}/{NAMESPACE}/podgroups"
_UID = re.compile(rb'"uid":"([^"]+)"')
_VERSION = re.compile(rb'"resourceVersion":"\d+"')


def run_first(kubeconfig: Path, processors: int, gang: int) -> None:
    """Run the first job on the first node, until the scheduler of the cluster has stored that."""
    asyncio.run(_run_first(kubeconfig, processors, gang))


async def _run_first(kubeconfig: Path, processors: int, gang: int) -> None:
    clients, job = Clients(await Target.of(kubeconfig), 1), numbered_job(1, gang)
    await clients.send("POST", "/api/v1/nodes", node(0, processors))
    while (await clients.send("POST", GROUPS, job.group()))[0] == 404:  # not served yet
        await asyncio.sleep(POLL_S)
    for key in job.keys:
        name = key.rpartition("/")[2]
        body = pod(name, job.name, "gangline", on_node=node_name(0))
        _, answer = await clients.send("POST", PODS, body)
        status = fake_kubelets.running_status(json.loads(answer)["metadata"]["uid"])
        await clients.send("PATCH", f"{PODS}/{name}/status", status, STRATEGIC)
    phase = ""
    while phase != "Running":
        await asyncio.sleep(POLL_S)
        _, answer = await clients.send("GET", f"{GROUPS}/{job.name}")
        phase = json.loads(answer).get("status", {}).get("phase", "")


def store_copies(path: Path, nodes: int, jobs: int, gang: int) -> None:
    """Complete the nodes and jobs in the state file of a cluster that has run the first ones.

    The pods take the nodes in turn.
    """
    database = StateDatabase(path, durability=Durability.PROCESS)
    try:
        newest = {(row.topic, row.key): row for row in database.rows()}
        database.commit(list(_copies(newest, nodes, jobs, gang)), (), 0)
    finally:
        database.close()


def _copies(
    newest: Mapping[tuple[str, str], LogRow], nodes: int, jobs: int, gang: int
) -> Iterator[LogRow]:
    revision = max(row.rv for row in newest.values())

    def copy(topic: str, key: str, names: dict[str, str]) -> LogRow:
        """Copy an object, with other names in it; the first one is its own."""
        nonlocal revision
        revision += 1
        row = newest[topic, key]
        body = row.body
        for old, new in names.items():
            body = body.replace(b'"%b"' % old.encode(), b'"%b"' % new.encode())
        if uid := _UID.search(body):
            body = body.replace(uid[1], b"%b%012x" % (uid[1][:-12], revision))
        body = _VERSION.sub(b'"resourceVersion":"%d"' % revision, body, count=1)
        own, *_ = names.items()
        return LogRow(revision, topic, key.replace(*own), "ADDED", body)

    names = [node_name(index) for index in range(nodes)]
    for name in names[1:]:
        yield copy("nodes.", names[0], {names[0]: name})
    first, turn = numbered_job(1, gang), cycle(names)
    for number in range(2, jobs + 1):
        job = numbered_job(number, gang)
        group_key = f"{NAMESPACE}/{first.name}"
        yield copy("podgroups.scheduling.volcano.sh", group_key, {first.name: job.name})
        for old, new in zip(first.keys, job.keys, strict=True):
            own = {old.rpartition("/")[2]: new.rpartition("/")[2]}
            yield copy("pods.", old, own | {first.name: job.name, names[0]: next(turn)})
