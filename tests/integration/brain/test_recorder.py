"""The record of a job that fails once, ends, and is deleted at once; and a database that is away.

Takes 40 s: a job runs twice on a complete cluster.
"""

import asyncio
import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from gangline.api.job_resources import PYTORCH_JOBS
from gangline.brain.collection.collector import Collector
from gangline.brain.collection.job_digest import DigestSettings
from gangline.brain.facts.job_record import JobRecord
from gangline.brain.record.recorder import Recorder
from gangline.brain.store.engine import Store, open_store
from gangline.cli.errors import ExitCode
from gangline.kube.client.client import ApiClient
from gangline.local.custom_resources import install_definitions
from integration.brain.store.test_outages import damage
from integration.cli.test_changing_jobs import SUBMIT, report, typed, waited
from integration.cluster.embedded import EmbeddedCluster, until

pytestmark = [pytest.mark.timeout(180)]

CLUSTER = "cluster"
SECRET = "hunter2-hunter2"


@pytest.mark.slow
async def test_job_that_is_deleted_after_its_end_has_its_record(
    shared_cluster: EmbeddedCluster,
) -> None:
    # A volume of the pod outlives its containers.
    flag = "/dev/shm/failed-once"
    script = f"echo token is $HF_TOKEN; test -e {flag} && exec echo trained; touch {flag}; exit 3"
    typed(
        shared_cluster, *SUBMIT, "--name", "recorded", "--share-memory", "16Mi", "--retry", "2",
        "-e", f"HF_TOKEN={SECRET}", script,
    )  # fmt: skip
    ended = waited(shared_cluster, "recorded")
    assert ended.returncode == ExitCode.DONE, report(ended)
    typed(shared_cluster, "delete", "recorded", "--yes")

    async def record() -> dict[str, Any]:
        done = shared_cluster.run("history", "get", "recorded", "-o", "json")
        run = json.loads(done.stdout) if done.returncode == 0 else {}
        whats = [entry["what"] for entry in (run.get("record") or {}).get("timeline", ())]
        return run if "deleted" in whats else {}

    run = await until(record, 60.0)
    timeline = {entry["what"]: entry for entry in run["record"]["timeline"]}
    assert {"submitted", "placed", "started", "restarted", "succeeded"} <= timeline.keys()
    restart = timeline["restarted"]
    assert (restart["blame"], restart["exit_code"], restart["number"]) == ("code", 3, 1)
    [tail] = run["logs"]
    assert (tail["replica"], tail["lines"]) == ("master-0", ["token is [masked]"])
    assert SECRET not in json.dumps(run)
    assert "recorded" in typed(shared_cluster, "history")


@pytest.fixture
def store(tmp_path: Path) -> Any:
    opened = open_store(f"sqlite:///{tmp_path}/brain.db", secret=b"secret")
    event.listen(opened.engine, "connect", lambda c, _: c.execute("PRAGMA busy_timeout=50").close())
    opened.engine.dispose()
    yield opened
    opened.close()


async def submit(client: ApiClient, name: str) -> str:
    template = {"spec": {"containers": [{"name": "pytorch", "image": "train"}]}}
    spec = {"pytorchReplicaSpecs": {"Master": {"template": template}}}
    job = await client.create(PYTORCH_JOBS, {"metadata": {"name": name}, "spec": spec}, "default")
    return job.metadata.uid


async def stored_record(store: Store, uid: str) -> JobRecord | None:
    stored = await store.query(lambda _: store.records.read(CLUSTER, uid))
    return stored.record if stored else None


def whats(record: JobRecord | None) -> list[str]:
    return [entry.what for entry in record.timeline] if record else []


async def test_records_wait_for_a_locked_database_and_outlive_a_damaged_one(
    client: ApiClient, store: Store, tmp_path: Path
) -> None:
    await install_definitions(client)
    collector = Collector(client, DigestSettings(CLUSTER, lambda *values: repr(values)))
    recorder = Recorder(client, collector, store, CLUSTER)
    file = tmp_path / "brain.db"
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(work()) for work in (collector.run, recorder.run)]
        await collector.synced()
        with closing(sqlite3.connect(file, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            uid = await submit(client, "locked")
            await client.delete(PYTORCH_JOBS, "locked", "default")

            async def is_noticed() -> bool:
                return not store.healthy

            await until(is_noticed, 60.0)
            other.execute("ROLLBACK")

        async def is_recorded() -> bool:
            return whats(await stored_record(store, uid)) == ["submitted", "deleted"]

        await until(is_recorded, 60.0)
        store.engine.dispose()  # the pages that connections have cached
        damage(file)
        later = await submit(client, "later")

        async def are_recorded_again() -> bool:
            records = [whats(await stored_record(store, one)) for one in (uid, later)]
            return records == [["submitted", "deleted"], ["submitted"]]

        await until(are_recorded_again, 60.0)
        assert any(name.startswith("brain.db.damaged-") for name in os.listdir(tmp_path))
        for task in running:
            task.cancel()
