"""Facts for a Brain outside of a cluster, of jobs that this launcher starts.

A job of several nodes has a master, which sends them. A job of one node has none that follows the
training, so the launcher digests the reports of its own workers.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gangline.elastic.agent.membership.master_messages import MasterMessages, node_report
from gangline.elastic.agent.rendezvous import SingleNodeRendezvous, WorkerControl
from gangline.elastic.agent.settings import NodeIdentity
from gangline.elastic.master.facts.brain_client import BrainSink
from gangline.elastic.master.facts.publication import CHECK_EVERY_S, PUBLISH_EVERY_S
from gangline.elastic.master.segments.digest import Instant, SegmentDigest, WorldMembers
from gangline.elastic.master.segments.document import (
    FactsContent,
    ReportedJob,
    encode_facts,
    model_facts,
)
from gangline.elastic.master.segments.pods import PodTable
from gangline.elastic.master.state.goodput import GoodputAccount

_NODE, _ROUND = 0, 1


class SingleNodeFacts:
    """Digests the reports of one node's workers."""

    def __init__(self, job: str, identity: NodeIdentity, client: BrainSink) -> None:
        self._job = ReportedJob(job, "default", uuid.uuid4().hex)
        self._identity, self._client = identity, client
        self._messages = MasterMessages(identity, "")
        self._account = GoodputAccount()
        self._digest = SegmentDigest(lambda: self._account.goodput(time.monotonic()))
        self._pods = PodTable()
        self._world = WorldMembers(_ROUND, _NODE, identity.local_world_size, {_NODE: 0})
        self._sent = 0

    def observe(self, workers: WorkerControl) -> None:
        report = workers.report()
        details = node_report(report, self._identity.pod, None, False)
        heartbeat = self._messages.heartbeat(
            _ROUND, report.attempt, report, details if report.is_detailed else None
        )
        at = Instant(time.monotonic(), time.time_ns() // 1_000_000)
        self._account.change_phase(at.job_s, report.phase)
        self._account.book_heartbeat(heartbeat)
        self._pods.observe(heartbeat, 0, at.job_s, at.wall_ms)
        self._digest.observe(self._world, heartbeat, at)

    def send_new(self) -> bool:
        """Send the facts if a segment was closed since the last time; return whether it was."""
        if self._digest.closed == self._sent:
            return False
        self._sent = self._digest.closed
        content = FactsContent(
            segments=[*self._digest.segments],
            pods=self._pods.facts(),
            model=model_facts(self._digest.model),
        )
        self._client.put(encode_facts(self._job, content))
        return True

    def finish(self) -> None:
        self._digest.interrupt()
        self.send_new()


@asynccontextmanager
async def send_single_node_facts(
    url: str, job: str, identity: NodeIdentity, rendezvous: SingleNodeRendezvous
) -> AsyncIterator[None]:
    client = BrainSink(url)
    facts = SingleNodeFacts(job, identity, client)

    async def follow() -> None:
        not_before = 0.0
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            if rendezvous.workers is not None:
                facts.observe(rendezvous.workers)
            if time.monotonic() >= not_before and facts.send_new():
                not_before = time.monotonic() + PUBLISH_EVERY_S

    task = asyncio.create_task(follow(), name="brain")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if rendezvous.workers is not None:
            facts.observe(rendezvous.workers)  # the last steps
        facts.finish()
        await asyncio.to_thread(client.close)
