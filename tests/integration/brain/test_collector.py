"""What the collector of the Brain reads, whatever the order in which the watches show it."""

import asyncio
import json

from gangline.api.brain.job_advice import BRAIN_ANNOTATION
from gangline.api.jobs.training_facts import FACTS_KEY, FACTS_LABEL, facts_name
from gangline.api.resources import CONFIG_MAPS, ELASTIC_JOBS, NAMESPACES
from gangline.brain.collection.collector import Collector
from gangline.brain.collection.job_digest import DigestSettings
from gangline.kube.client.client import ApiClient
from gangline.local.custom_resources import install_definitions

NAMESPACE = "team"
SEGMENT = {
    "round": 1, "since": 1_790_000_000_000, "until": 1_790_000_060_000, "nodes": 2,
    "procs": 2, "steps": 60,
    "stepSeconds": {"count": 60, "mean": 1.0, "m2": 0.001}, "quality": "good",
}  # fmt: skip


async def test_facts_that_arrive_before_their_job_are_read(client: ApiClient) -> None:
    await install_definitions(client)
    labels = {BRAIN_ANNOTATION: "off"}
    await client.create(NAMESPACES, {"metadata": {"name": NAMESPACE, "labels": labels}})
    worker = {"template": {"spec": {"containers": [{"name": "main", "image": "train"}]}}}
    written = {"metadata": {"name": "train"}, "spec": {"replicaSpecs": {"worker": worker}}}
    job = await client.create(ELASTIC_JOBS, written, NAMESPACE)
    owner = {
        "apiVersion": ELASTIC_JOBS.api_version,
        "kind": ELASTIC_JOBS.kind,
        "name": "train",
        "uid": job.metadata.uid,
    }
    facts = {
        "metadata": {
            "name": facts_name("train"),
            "labels": {FACTS_LABEL: "true"},
            "ownerReferences": [owner],
        },
        "data": {FACTS_KEY: json.dumps({"v": 1, "segments": [SEGMENT]})},
    }
    await client.create(CONFIG_MAPS, facts, NAMESPACE)
    collector = Collector(client, DigestSettings("cluster", lambda *values: repr(values)))
    watching = asyncio.create_task(collector.run())
    try:
        async with asyncio.timeout(30):
            await collector.synced()
            assert not collector.jobs
            # From now on its jobs are observed. Their facts do not change again.
            patch = {"metadata": {"labels": {BRAIN_ANNOTATION: None}}}
            await client.patch(NAMESPACES, NAMESPACE, patch)
            while job.metadata.uid not in collector.jobs:
                await asyncio.sleep(0.02)
        assert collector.jobs[job.metadata.uid].observations.segments
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
