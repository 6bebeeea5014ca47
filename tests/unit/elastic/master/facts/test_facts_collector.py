"""Facts from the heartbeats of agents, whatever these contain."""

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.api.jobs.training_facts import (
    CheckpointTuning,
    JobTuning,
    LoaderTuning,
    OptimizerTuning,
    TrainingFacts,
)
from gangline.elastic.master.facts.cluster import convert_tuning
from gangline.elastic.master.facts.collector import FactsCollector
from gangline.elastic.master.facts.publication import PUBLISH_EVERY_S, FactsPublisher
from gangline.elastic.master.segments.document import ReportedJob, encode_facts
from gangline.elastic.master.state.goodput import GoodputAccount
from gangline.elastic.nodecheck.result import CheckOutcome
from gangline.elastic.progress import ReportedShape, StepTimes
from gangline.elastic.protocol.messages import (
    FailureReport,
    Heartbeat,
    LoaderValues,
    NodeReport,
    NodeResources,
    Tuning,
    WorldInfo,
    WorldMember,
)


class Master:
    """As much of a master as the collector uses."""

    def __init__(self) -> None:
        members = tuple(
            WorldMember(node, node, node, 4, node * 4, f"host-{node}") for node in (0, 1)
        )
        world = WorldInfo(round=1, members=members, store_host="", store_port=1)
        self.state = SimpleNamespace(world=world, is_broken=False, members={0: 1, 1: 1})
        persistent = SimpleNamespace(account=GoodputAccount(), attempts={})
        core: Any = SimpleNamespace(
            rendezvous=SimpleNamespace(state=self.state),
            state=SimpleNamespace(persistent=persistent),
        )
        self.checks: Any = SimpleNamespace(ended=0, outcomes={})
        self.now = 0.0
        self.facts = FactsCollector(
            core, lambda: self.now, self.checks, lambda: 1_700_000_000_000 + int(self.now * 1000)
        )

    def train(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now += 1
            for node in (0, 1):
                step = int(self.now)
                report = NodeReport(
                    pod=f"pod-{node}", batch_size=8, memory_peak_bytes=100 + node,
                    tuning_version=3 + node, step_times=StepTimes(step, 1.0, 0.0),
                )  # fmt: skip
                self.facts.observe(
                    Heartbeat(
                        node_id=node,
                        round=1,
                        step=step,
                        first_step=1,
                        node=report,
                        resources=NodeResources(2.0, 5),
                    )
                )

    def read(self) -> TrainingFacts:
        written = encode_facts(ReportedJob("train", "team", "u"), self.facts.content())
        return msgspec.json.decode(written, type=TrainingFacts)


def test_facts_hold_segments_pods_checks_and_the_tuning_of_all_nodes() -> None:
    master = Master()
    master.train(100)
    master.checks.outcomes = {
        0: CheckOutcome(True, 1.0),
        1: CheckOutcome(False, 1.5),
        9: CheckOutcome(True),
    }
    master.checks.ended = 1
    changes = master.facts.changes
    master.facts.check()
    master.facts.finish()
    assert master.facts.changes == changes + 2, "a check, and the segment that was open"
    facts = master.read()
    assert (facts.name, facts.namespace, facts.uid) == ("train", "team", "u")
    assert [segment.quality for segment in facts.segments] == ["warm_up", "good"]
    assert [(pod.name, pod.peak_memory_bytes) for pod in facts.pods] == [
        ("pod-0", 100), ("pod-1", 101),
    ]  # fmt: skip
    assert facts.tuning_version == 3
    assert [(node.name, node.rank, node.passed, node.factor) for node in facts.nodes] == [
        ("pod-1", 1, False, 1.5), ("pod-0", 0, True, 1.0), ("9", -1, True, None),
    ]  # fmt: skip


def test_micro_batch_that_ran_out_of_device_memory_is_published() -> None:
    master = Master()
    master.train(10)
    failure = FailureReport(node_id=1, cause="DeviceOutOfMemory")
    changes = master.facts.changes
    master.facts.add_failure(failure, None)
    assert master.facts.changes == changes, "the model of the device is not known"
    report = NodeReport(batch_size=8, device_model="A100", tuning_version=4, tunes_batch=True)
    master.facts.observe(Heartbeat(node_id=1, round=1, step=11, first_step=1, node=report))
    tuned = Tuning(version=4, devices={"A100": LoaderValues(batch_size=16)})
    master.facts.add_failure(FailureReport(node_id=1, cause="OutOfMemory"), tuned)
    master.facts.add_failure(failure, tuned)
    master.facts.add_failure(failure, msgspec.structs.replace(tuned, version=5))
    assert master.facts.changes == changes + 2
    shortages = [
        (shortage.device_model, shortage.micro_batch) for shortage in master.read().device_shortages
    ]
    assert shortages == [("A100", 16), ("A100", 8)], "version 5 is not applied yet"
    second = Master()
    second.facts.load(master.read())
    assert second.read().device_shortages == master.read().device_shortages


def test_new_master_continues_with_what_was_published() -> None:
    first, second = Master(), Master()
    first.train(100)
    first.facts.finish()
    published = first.read()
    second.facts.load(published)
    assert second.read() == msgspec.structs.replace(published, tuning_version=None)


def test_broken_world_ends_the_segment() -> None:
    master = Master()
    master.train(60)
    closed = master.facts.changes
    master.state.is_broken = True
    master.facts.check()
    assert master.facts.changes == closed + 1


ANYTHING = st.none() | st.floats() | st.integers(-(1 << 62), 1 << 62)


@given(
    st.lists(
        st.builds(
            Heartbeat,
            node_id=st.integers(0, 3),
            round=st.integers(0, 2),
            attempt=st.integers(-1, 3),
            step=st.none() | st.integers(-5, 1 << 60),
            first_step=st.none() | st.integers(-5, 1 << 60),
            resources=st.none() | st.builds(NodeResources, st.floats(), st.integers()),
            node=st.none()
            | st.builds(
                NodeReport,
                batch_size=ANYTHING, accumulation=ANYTHING, compute_s=ANYTHING, sync_s=ANYTHING,
                data_s=ANYTHING, grad_sqr=ANYTHING, grad_var=ANYTHING,
                device_peak_bytes=st.lists(st.integers(-9, 1 << 62), max_size=3).map(tuple),
                device_model=st.text(max_size=9), global_batch=ANYTHING,
                step_times=st.none()
                | st.builds(StepTimes, st.integers(-3, 1 << 60), st.floats(), st.floats()),
                model=st.none() | st.builds(ReportedShape), pod=st.text(max_size=9),
                memory_peak_bytes=st.none() | st.integers(),
            ),
        ),
        max_size=30,
    ),
    st.lists(st.floats(0, 1000), min_size=30, max_size=30),
)  # fmt: skip
def test_heartbeats_with_impossible_values_are_survived(
    heartbeats: list[Heartbeat], pauses: list[float]
) -> None:
    master = Master()
    for heartbeat, pause in zip(heartbeats, pauses, strict=False):
        master.now += pause
        master.facts.observe(heartbeat)
    master.facts.finish()
    facts = master.read()
    assert all(segment.step_seconds.mean > 0 for segment in facts.segments)


class Sink:
    """Records what is published; the first attempts may fail."""

    def __init__(self, failures: int = 0) -> None:
        self.published: list[TrainingFacts] = []
        self._failures = failures

    async def publish(self, facts: bytes) -> bool:
        if self._failures:
            self._failures -= 1
            return False
        self.published.append(msgspec.json.decode(facts, type=TrainingFacts))
        return True


async def test_facts_are_published_once_a_minute_at_most_and_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gangline.elastic.master.facts.publication.CHECK_EVERY_S", 0.001)
    master, sink, over = Master(), Sink(), asyncio.Event()
    publisher = FactsPublisher(ReportedJob("train"), master.facts, [sink])
    running = asyncio.create_task(publisher.run(over))
    master.train(30)
    while not sink.published:
        await asyncio.sleep(0.001)
    master.train(600)  # closes further segments within the same real second
    assert PUBLISH_EVERY_S == 60
    for _ in range(20):
        await asyncio.sleep(0.002)
    assert len(sink.published) == 1
    over.set()
    while len(sink.published) < 2:
        await asyncio.sleep(0.001)
    assert len(sink.published[1].segments) == 4
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await publisher.finish()
    assert len(sink.published) == 2, "nothing is new"


async def test_facts_that_a_sink_could_not_publish_are_published_again_without_a_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gangline.elastic.master.facts.publication.CHECK_EVERY_S", 0.001)
    monkeypatch.setattr("gangline.elastic.master.facts.publication.RETRY_S", (0.001, 0.002))
    master, failing, working = Master(), Sink(failures=2), Sink()
    publisher = FactsPublisher(ReportedJob("train"), master.facts, [failing, working])
    master.train(30)
    running = asyncio.create_task(publisher.run(asyncio.Event()))
    while not failing.published:
        await asyncio.sleep(0.001)
    assert len(working.published) == 1, "it has the facts already"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def test_tuning_becomes_the_message() -> None:
    tuning = JobTuning(
        v=1, version=4, dataloader=LoaderTuning(8, 2, True), devices={"A": LoaderTuning(4)},
        optimizer=OptimizerTuning(0.1, 0.0), checkpoint=CheckpointTuning(1.0, 60.0),
    )  # fmt: skip
    message = convert_tuning(tuning)
    assert isinstance(message, Tuning)
    assert (message.version, message.dataloader.batch_size) == (4, 8)
    assert message.devices["A"].batch_size == 4
    assert message.checkpoint is not None
    assert message.checkpoint.seconds == 60.0


@pytest.mark.parametrize(
    ("tuning", "field"),
    [
        (JobTuning(v=2, version=1), "v is 2"),
        (JobTuning(v=1, version=0), "version is 0"),
        (JobTuning(v=1, version=1, dataloader=LoaderTuning(0)), "dataloader.batchSize is 0"),
        (JobTuning(v=1, version=1, devices={"A": LoaderTuning(num_workers=-1)}), r"devices\[A\]"),
        (JobTuning(v=1, version=1, optimizer=OptimizerTuning(float("nan"))), "learningRate"),
        (JobTuning(v=1, version=1, checkpoint=CheckpointTuning(0.0, 1.0)), "checkpoint.failures"),
    ],
)
def test_impossible_tuning_is_refused_by_field(tuning: JobTuning, field: str) -> None:
    with pytest.raises(ValueError, match=field):
        convert_tuning(tuning)
