"""Records of the history for tests."""

from typing import Any, TypeVar

from gangline.api.jobs.training_facts import ModelShapeFacts, SegmentFacts, StepSeconds
from gangline.brain.facts.records import (
    Image,
    NodeSpeed,
    Outcome,
    PodRun,
    RecordedJob,
    RoleSize,
    Run,
)
from gangline.brain.store.context import Fact

T = TypeVar("T")
NOW_MS = 1_760_000_000_000
DAY_MS = 86_400_000
HOUR_MS = 3_600_000


def a_job(number: int = 1, **changes: Any) -> RecordedJob:
    """A job that succeeded ``number`` hours ago."""
    finished_ms = NOW_MS - number * HOUR_MS
    fields: dict[str, Any] = {
        "cluster": "cluster",
        "uid": f"uid-{number}",
        "namespace": "vision",
        "name": f"train-resnet-{number}",
        "stem": "train-resnet",
        "kind": "ElasticJob",
        "owner": "ada",
        "queue": "default",
        "image": Image(repository="registry/train", tag="1.0"),
        "command_digest": "c0ffee",
        "spec_digest": f"spec-{number}",
        "submitted_ms": finished_ms - HOUR_MS,
        "started_ms": finished_ms - HOUR_MS + 1000,
        "finished_ms": finished_ms,
        "outcome": Outcome.SUCCEEDED,
        "complete": True,
        "roles": (
            RoleSize(
                role="worker",
                since_ms=finished_ms - HOUR_MS,
                replicas=4,
                gpus=8,
                gpu_model="A100",
                memory_bytes=32 << 30,
            ),
        ),
        "model": ModelShapeFacts(params=7 * 10**9, sequence=4096),
        "observed_ms": finished_ms,
    }
    return RecordedJob(**(fields | changes))


def a_running_job(number: int = 1, **changes: Any) -> RecordedJob:
    """A job that runs."""
    running = {"outcome": Outcome.RUNNING, "finished_ms": None, "complete": False}
    return a_job(number, **(running | changes))


def a_segment(number: int = 1, **changes: Any) -> SegmentFacts:
    """A segment of five minutes."""
    fields: dict[str, Any] = {
        "round": 1,
        "since": NOW_MS - number * 300_000,
        "until": NOW_MS - (number - 1) * 300_000,
        "nodes": 4,
        "procs": 32,
        "device_model": "A100",
        "micro_batch": 8,
        "steps": 300,
        "step_seconds": StepSeconds(300, 1 / 3, 1e-13),
        "compute_seconds": 0.2 / 7,
    }
    return SegmentFacts(**(fields | changes))


def a_pod(rank: int = 0, **changes: Any) -> PodRun:
    """A pod run that ended."""
    fields: dict[str, Any] = {
        "role": "worker",
        "rank": rank,
        "number": 0,
        "node": f"node-{rank}",
        "started_ms": NOW_MS - HOUR_MS,
        "ended_ms": NOW_MS,
        "peak_memory_bytes": (9 << 30) + rank,
        "cpu_p95_millis": 3000,
        "samples": 60,
    }
    return PodRun(**(fields | changes))


def a_node_speed(day: int = 20_000, **changes: Any) -> NodeSpeed:
    """A day of a node."""
    fields: dict[str, Any] = {
        "node": "node-1",
        "gpu_model": "A100",
        "day": day,
        "score": 0.97,
        "jobs": 3,
        "observed_ms": NOW_MS,
    }
    return NodeSpeed(**(fields | changes))


def a_run(number: int = 1, segments: int = 3, pods: int = 4, **changes: Any) -> Run:
    """A job with segments and pod runs, as the store returns it."""
    return Run(
        job=a_job(number, **changes),
        segments=tuple(a_segment(n) for n in range(segments, 0, -1)),
        pods=tuple(a_pod(rank) for rank in range(pods)),
    )


def job_fact(job: RecordedJob) -> Fact:
    return Fact(job.cluster, job.uid, job)


def not_none(value: T | None) -> T:
    assert value is not None
    return value
