"""Watches of an API server that goes away and comes back, and readings and logs that are shared."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gangline.dashboard.logs import LogHub
from gangline.dashboard.observed import ClusterSnapshot
from gangline.dashboard.sources import Sources, in_thread
from gangline.dashboard.watching import ClusterWatch
from gangline.kube.client.client import ApiClient
from gangline.kube.config.config import ClusterConfig
from gangline.kube.errors import ApiError, Unreachable
from gangline.sdk.logs import LogLine
from unit.dashboard.observed_state import StubServer, example, not_found


class StubInformer:
    """An informer whose state a test sets."""

    made: dict[str, "StubInformer"]

    def __init__(self, client: Any, resource: Any, *_: Any, **__: Any) -> None:
        self.problem: ApiError | None = None
        self.has_synced = True
        self.starts = 0
        StubInformer.made[resource.plural] = self

    def add_listener(self, listener: Any) -> None:
        """Nothing is observed here."""

    async def run(self) -> None:
        self.starts += 1
        await asyncio.Event().wait()


class StubClient:
    """Answers unless it is away."""

    is_away = False

    async def request_json(self, *_: Any, **__: Any) -> None:
        if self.is_away:
            raise Unreachable("no answer")


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0)


async def test_all_watches_are_opened_when_the_server_answers_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    StubInformer.made = {}
    monkeypatch.setattr("gangline.dashboard.watching.Informer", StubInformer)
    monkeypatch.setattr("gangline.dashboard.watching._CHECK_S", 0.0)
    monkeypatch.setattr("gangline.dashboard.watching.gc.freeze", lambda: None)
    client, cluster = StubClient(), ClusterSnapshot()
    watching = asyncio.create_task(ClusterWatch(client, cluster).run())  # type: ignore[arg-type]
    await until(lambda: bool(cluster.sources) and cluster.has_synced)
    pods, jobs = StubInformer.made["pods"], StubInformer.made["mpijobs"]
    jobs.problem = not_found("mpijobs")
    await until(lambda: cluster.sources["mpijobs.kubeflow.org"].absent)
    assert cluster.problem() is None  # a kind that is not there is no problem

    client.is_away = True
    pods.problem = Unreachable("connection refused")
    await until(lambda: cluster.problem() is not None)
    assert cluster.sources["pods."].problem == "connection refused"
    assert pods.starts == 1
    client.is_away = False
    await until(lambda: cluster.problem() is None)
    assert (pods.starts, jobs.starts) == (2, 1)

    pods.problem = Unreachable("away again")
    client.is_away = True
    await until(lambda: cluster.problem() is not None)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


async def test_reader_of_a_job_is_woken_by_changes_of_this_job_alone() -> None:
    recorded = example()
    cluster, key = recorded.cluster, ("default", "pytorchjob", "running")
    waiting = asyncio.create_task(cluster.wait_for_change(cluster.revision_of(key), key))
    await asyncio.sleep(0)
    recorded.pod("waiting", 0, "Running", node="node-1")
    recorded.node("node-9")
    await asyncio.sleep(0)
    assert not waiting.done()
    recorded.pod("running", 0, "Failed", node="node-1", exit_code=1)
    await waiting
    waiting = asyncio.create_task(cluster.wait_for_change(cluster.revision_of(key), key))
    await asyncio.sleep(0)
    recorded.remove("running")
    await waiting


async def test_one_reading_explains_all_jobs_that_were_asked_for_during_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded = example()
    jobs = {shown.job.name: shown.job for shown in recorded.observation().jobs()}
    read: list[set[str]] = []
    may_end = asyncio.Event()

    async def explain(_: object, __: object, asked: Any, **___: object) -> dict[str, list[str]]:
        read.append(set(asked))
        await may_end.wait()
        return {uid: ["waits"] for uid in asked if uid != jobs["failed"].uid}

    async def read_settings(_: object) -> None:
        return None

    async def here(_: object, work: Callable[[None], Awaitable[object]]) -> object:
        return await work(None)

    replay = "gangline.scheduler.reporting.replay.read_deployed_settings"
    monkeypatch.setattr("gangline.scheduler.reporting.live.explain_jobs", explain)
    monkeypatch.setattr(replay, read_settings)
    monkeypatch.setattr("gangline.dashboard.sources.in_thread", here)
    sources = Sources(StubServer(recorded), recorded.cluster)  # type: ignore[arg-type]
    assert sources.explanation(jobs["waiting"]) == ()
    await until(lambda: bool(read))
    for _ in range(3):
        for name in ("running", "failed", "waiting"):
            assert sources.explanation(jobs[name]) == ()
    may_end.set()
    await until(lambda: sources.explanation(jobs["waiting"]) == ["waits"])
    await until(lambda: sources.explanation(jobs["running"]) == ["waits"])
    assert sources.explanation(jobs["failed"]) == ()  # known, and not read again immediately
    uids = {name: job.uid for name, job in jobs.items()}
    assert read[0] == {uids["waiting"]}
    assert read[1] == {uids["waiting"], uids["running"], uids["failed"]}
    assert len(read) == 2


async def test_a_reading_whose_reader_has_gone_ends_without_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    errors: list[object] = []
    monkeypatch.setattr(threading, "excepthook", errors.append)
    begun, may_end = threading.Event(), threading.Event()

    async def work(_: ApiClient) -> None:
        begun.set()
        may_end.wait()

    before = set(threading.enumerate())
    reading = asyncio.create_task(in_thread(ClusterConfig("https://127.0.0.1:1"), work))
    await asyncio.to_thread(begun.wait)
    (thread,) = {t for t in threading.enumerate() if t.name == "dashboard: reading"} - before
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    may_end.set()
    await asyncio.to_thread(thread.join)
    assert errors == []


async def test_log_that_is_opened_again_after_its_end_stays_open_for_its_readers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    idle_s, streams = 0.01, 0
    late = asyncio.Event()

    async def batches() -> AsyncIterator[list[LogLine]]:
        await late.wait()
        yield [LogLine("", "worker-0", "a line")]
        await asyncio.Event().wait()

    @asynccontextmanager
    async def follow(*_: object) -> AsyncIterator[AsyncIterator[list[LogLine]]]:
        nonlocal streams
        streams += 1
        if streams == 1:
            raise Unreachable("no container yet")
        yield batches()

    monkeypatch.setattr("gangline.dashboard.logs.IDLE_S", idle_s)
    monkeypatch.setattr("gangline.dashboard.logs.follow_batches", follow)
    hub = LogHub(StubClient())  # type: ignore[arg-type]
    job = next(example().observation().jobs()).job
    first = hub.open(job, "")
    await until(lambda: first.has_ended)
    reopened = hub.open(job, "")
    with reopened.read():
        # Later than the end of the first stream's idle time.
        asyncio.get_running_loop().call_later(3 * idle_s, late.set)
        async with asyncio.timeout(10):
            await reopened.wait(0)
    await hub.aclose()
    assert [line.text for line in reopened.since(0)[0]] == ["a line"]
