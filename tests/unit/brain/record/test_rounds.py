"""The rounds of the recorder and of the usage poll over many jobs."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gangline.api.core.pod import Pod
from gangline.api.job_resources import PYTORCH_JOBS
from gangline.brain.collection.collector import Collector
from gangline.brain.collection.job_digest import DigestSettings
from gangline.brain.collection.measurements import PodSample
from gangline.brain.facts.job_record import JobRecord
from gangline.brain.record import recorder as recorders
from gangline.brain.record.observe import JobAtTime, observe
from gangline.brain.record.recorder import Recorder
from gangline.brain.store.engine import Store, open_store
from unit.brain.collection.test_job_digest import KINDS, SETTINGS, pytorch
from unit.kube.turn_taking import longest_run, slow_clock

COUNT = 60


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with open_store(f"sqlite:///{tmp_path}/brain.db", secret=b"s") as opened:
        yield opened


class Jobs:
    """A recorder of many jobs, each with a pod."""

    def __init__(self, store: Store) -> None:
        client: Any = None
        self.collector = Collector(client, DigestSettings("c", SETTINGS.digest))
        self.recorder = Recorder(client, self.collector, store, "c")
        self.names = [f"job-{number:02}" for number in range(COUNT)]
        for name in self.names:
            self.change(name)
        for name in self.names:
            self.collector.pods._indexer.put(pod(name))

    def change(self, name: str, *conditions: dict[str, str]) -> None:
        manifest = pytorch(name) | {"status": {"conditions": conditions}}
        kind = KINDS["PyTorchJob"]
        job = msgspec.convert(manifest, PYTORCH_JOBS.type)
        self.collector._on_job(kind, None, job)


def pod(job: str) -> Pod:
    owner = {"apiVersion": "v1", "kind": "PyTorchJob", "name": job, "uid": f"uid-{job}"}
    labels = {
        "training.kubeflow.org/replica-type": "worker",
        "training.kubeflow.org/replica-index": "0",
    }
    meta = {
        "name": f"{job}-worker-0",
        "namespace": "team",
        "uid": f"uid-{job}-0",
        "labels": labels,
        "ownerReferences": [owner | {"controller": True}],
    }
    return msgspec.convert({"metadata": meta}, Pod)


@pytest.fixture
def jobs(store: Store) -> Jobs:
    return Jobs(store)


async def test_other_tasks_run_while_many_jobs_are_observed(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_clock(monkeypatch)
    observed: list[str] = []

    def observing(step: Callable[[], None]) -> Awaitable[None]:
        def observe_job(record: JobRecord, seen: JobAtTime) -> JobRecord:
            observed.append(seen.job.name)
            step()
            return observe(record, seen)

        monkeypatch.setattr(recorders, "observe", observe_job)
        return jobs.recorder._observe_dirty()

    assert 0 < await longest_run(observing) <= 3
    assert sorted(observed) == jobs.names
    assert await longest_run(observing) == 0, "what has not changed is not observed again"


async def test_other_tasks_run_while_many_readings_are_taken(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_clock(monkeypatch)
    samples = {("team", f"{name}-worker-0"): PodSample(1_000, 500) for name in jobs.names}
    taken: list[str] = []

    def taking(step: Callable[[], None]) -> Awaitable[None]:
        def take(uid: str, readings: object) -> None:
            assert readings == [PodSample(1_000, 500)]
            taken.append(uid)
            step()

        jobs.collector.add_listeners(lambda *_: None, lambda *_: None, take)
        return jobs.collector._on_usage(samples)

    assert 0 < await longest_run(taking) <= 3
    assert sorted(taken) == [f"uid-{name}" for name in jobs.names]
    await jobs.recorder.flush()
    for name in jobs.names:
        record = jobs.recorder.current(f"uid-{name}")
        assert record is not None
        assert record.curves["usage"].values == {"cpu": (0.5,), "memory": (1_000.0,)}


async def test_records_of_ended_jobs_are_written_first_and_no_longer_than_until_a_time(
    jobs: Jobs, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorders, "BATCH", 1)
    write, written = store.records.write, list[str]()

    def spy(cluster: str, rows: Any) -> list[str]:
        written.extend(row.uid for row in rows)
        return write(cluster, rows)

    monkeypatch.setattr(store.records, "write", spy)
    await jobs.recorder.flush(until=0.0)
    assert written == []
    last = jobs.names[-1]
    jobs.change(last, {"type": "Succeeded", "status": "True"})
    await jobs.recorder.flush()
    assert written[0] == f"uid-{last}"
    assert sorted(written) == [f"uid-{name}" for name in jobs.names]
