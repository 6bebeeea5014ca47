"""Following the logs of a job: lines, their queue, and where following continues."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.kube.client.client import ApiClient
from gangline.kube.client.decoding import split_lines
from gangline.kube.config.config import load_config
from gangline.sdk.client import JobClient
from gangline.sdk.logs import (
    ALL_LOGS,
    MAX_QUEUED_LINES,
    LineQueue,
    LogFollower,
    LogLine,
    LogPosition,
    follow_logs,
    read_logs,
)
from unit.cli.fake_api import FakeApi, serving

JOB = "/apis/kubeflow.org/v1/namespaces/default/pytorchjobs/digits"
PODS = "/api/v1/namespaces/default/pods"
LINES = MAX_QUEUED_LINES * 2 // 3
PATIENCE_S = 60.0


def add_ended_replica(api: FakeApi, index: int) -> None:
    owner = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "digits"}
    labels = {
        "training.kubeflow.org/job-name": "digits",
        "training.kubeflow.org/replica-type": "worker",
        "training.kubeflow.org/replica-index": str(index),
    }
    reference = owner | {"uid": JOB, "controller": True}
    ended = {"name": "c", "state": {"terminated": {"exitCode": 0}}}
    api.add(
        f"{PODS}/digits-worker-{index}",
        metadata={"labels": labels, "ownerReferences": [reference]},
        spec={"containers": [{"name": "c"}], "nodeName": "n"},
        status={"phase": "Succeeded", "containerStatuses": [ended]},
    )
    time = "2026-01-01T00:00:00.{:09}Z"
    lines = (f"{time.format(number)} line {number}\n" for number in range(LINES))
    api.logs[f"digits-worker-{index}"] = "".join(lines)


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[ApiClient]:
    """A client of a cluster with a job of three replicas that has ended."""
    async with serving(tmp_path) as (api, kubeconfig):
        template = {"spec": {"containers": [{"name": "c", "image": "i"}]}}
        api.add(
            JOB,
            spec={"pytorchReplicaSpecs": {"Worker": {"replicas": 3, "template": template}}},
            status={"conditions": [{"type": "Succeeded", "status": "True"}]},
        )
        for index in range(3):
            add_ended_replica(api, index)
        async with ApiClient(load_config(str(kubeconfig))) as connected:
            yield connected


async def test_backlog_of_all_replicas_is_read_completely_in_order_of_time(
    client: ApiClient,
) -> None:
    job = await JobClient(client).get("digits", "default")
    async with asyncio.timeout(PATIENCE_S), follow_logs(client, job) as lines:
        read = [line async for line in lines]
    assert [line.time for line in read] == sorted(line.time for line in read)
    got = [(line.replica, line.text) for line in read]
    for index in range(3):
        texts = [text for replica, text in got if replica == f"worker-{index}"]
        assert texts == [f"line {number}" for number in range(LINES)]


async def test_consumer_can_stop_while_lines_are_queued(client: ApiClient) -> None:
    follower = LogFollower(client, await JobClient(client).get("digits", "default"), ALL_LOGS)
    async with asyncio.timeout(PATIENCE_S):
        work = asyncio.create_task(follower.run())
        while len(follower.lines) < MAX_QUEUED_LINES:
            await asyncio.sleep(0.01)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work


async def test_of_a_line_with_carriage_returns_the_last_state_is_read(
    client: ApiClient, tmp_path: Path
) -> None:
    job = await JobClient(client).get("digits", "default")
    bars = "T1 \r 0%\r 50%\r100%\nT2 gone\r    \r\nT3 windows\r\nT4 \r 1%\r 2%"
    async with serving(tmp_path) as (api, kubeconfig):
        add_ended_replica(api, 0)
        api.logs["digits-worker-0"] = bars
        async with ApiClient(load_config(str(kubeconfig))) as other:
            lines = [line async for line in read_logs(other, job)]
    assert [(line.time, line.text, line.is_bar) for line in lines] == [
        ("T1", "100%", False),
        ("T2", "gone", False),
        ("T3", "windows", False),
        ("T4", " 2%", False),
    ]


async def test_states_of_a_bar_are_yielded_before_its_line_ends() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for chunk in (b"a\nT \r 10", b"%", b"\r 20%", b"\n"):
            yield chunk

    parts = [part async for part in split_lines(chunks(), bars=True)]
    assert parts == [b"a", b"T \r 10\r", b"\r 10%\r", b"\r 10%\r 20%\r", b"\r 20%"]


TIMES = ["2026-01-01T00:00:00.1Z", "2026-01-01T00:00:00.2Z", "2026-01-01T00:00:01.3Z"]
lines = st.lists(
    st.builds(
        LogLine, st.sampled_from(TIMES), st.just("worker-0"), st.sampled_from(["a", "b", "c"])
    ),
    max_size=12,
).map(lambda found: sorted(found, key=lambda line: line.time))


@given(lines, st.lists(st.integers(0, 12), max_size=4))
def test_lines_that_are_sent_again_are_returned_once(
    written: list[LogLine], breaks: list[int]
) -> None:
    """Each break resumes at the second of the last line, as ``sinceTime`` does."""
    position = LogPosition()
    passed: list[LogLine] = []
    for length in [*sorted(breaks), len(written)]:
        position.resume()
        second = position.last[:19]
        again = [line for line in written[:length] if line.time[:19] >= second]
        passed += [line for line in again if position.is_new(line)]
    assert passed == written


def test_equal_lines_of_one_time_are_all_passed_on() -> None:
    position = LogPosition()
    line = LogLine(TIMES[0], "worker-0", "again")
    assert [position.is_new(line) for _ in range(3)] == [True, True, True]
    position.resume()
    assert [position.is_new(line) for _ in range(4)] == [False, False, False, True]


async def test_all_queued_lines_form_one_batch() -> None:
    queue: LineQueue[str] = LineQueue()
    batches = queue.batches()
    for line in ("a", "b", "c"):
        await queue.put(line)
    assert await anext(batches) == ["a", "b", "c"]
    await queue.put("d")
    assert await anext(batches) == ["d"]
    await queue.put("e")
    queue.close()
    assert [batch async for batch in batches] == [["e"]]


async def test_an_empty_line_is_not_the_end() -> None:
    queue: LineQueue[str] = LineQueue()
    for line in ("a", "", "b"):
        await queue.put(line)
    queue.close()
    assert [batch async for batch in queue.batches()] == [["a", "", "b"]]


async def test_readers_wait_for_a_slow_taker_and_nothing_is_lost() -> None:
    queue: LineQueue[tuple[int, int]] = LineQueue(5)

    async def read(reader: int) -> None:
        for number in range(100):
            await queue.put((reader, number))

    async def read_all() -> None:
        await asyncio.gather(*(read(reader) for reader in range(3)))
        queue.close()

    reading = asyncio.create_task(read_all())
    taken: list[tuple[int, int]] = []
    async for batch in queue.batches():
        assert 0 < len(batch) <= 5
        taken += batch
    await reading
    for reader in range(3):
        assert [number for of, number in taken if of == reader] == list(range(100))


async def test_closing_full_queue_does_not_wait() -> None:
    queue: LineQueue[int] = LineQueue(2)
    for number in range(2):
        await queue.put(number)
    queue.close()
    assert [batch async for batch in queue.batches()] == [[0, 1]]


async def test_waiting_consumer_is_woken_by_close() -> None:
    queue: LineQueue[int] = LineQueue()

    async def take() -> list[list[int]]:
        return [batch async for batch in queue.batches()]

    waiting = asyncio.create_task(take())
    await asyncio.sleep(0)
    queue.close()
    assert await waiting == []
