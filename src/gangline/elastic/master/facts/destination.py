"""Opens the destinations of a job's facts: its ConfigMap, and a Brain outside of the cluster."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from gangline.elastic.master.facts.publication import Publication
from gangline.elastic.master.facts.publisher import FactsSink
from gangline.elastic.master.segments.document import JobIdentity


@asynccontextmanager
async def open_publication(
    job: JobIdentity, *, in_cluster: bool, brain_url: str | None
) -> AsyncIterator[Publication | None]:
    """Open all destinations; None without any.

    Args:
        job: the job.
        in_cluster: True if the job has ConfigMaps for facts and tuning.
        brain_url: the checked URL of a Brain; None for none.
    """
    sinks: list[FactsSink] = []
    cluster = None
    async with AsyncExitStack() as stack:
        if brain_url:
            from gangline.elastic.master.facts.brain_client import BrainClient

            brain = BrainClient(brain_url)
            stack.push_async_callback(asyncio.to_thread, brain.close)
            sinks.append(brain)
        if in_cluster:
            from gangline.elastic.master.facts.cluster import cluster_facts

            cluster = await stack.enter_async_context(cluster_facts(job.namespace, job.name))
            sinks.append(cluster)
        yield Publication(job, sinks, cluster, cluster) if sinks else None
