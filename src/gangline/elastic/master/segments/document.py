"""The JSON that a master publishes, which is never larger than its limit.

Pods, nodes and ranks of large jobs are shortened first, then the oldest segments are left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gangline.api.jobs.training_facts import (
    FACTS_MAX_BYTES,
    FACTS_MAX_SEGMENTS,
    FACTS_VERSION,
    DeviceShortageFacts,
    ModelShapeFacts,
    NodeFacts,
    PodFacts,
    SegmentFacts,
    TrainingFacts,
)
from gangline.elastic.master.segments.windows import NO_WINDOWS, RankWindows, select_ranks
from gangline.elastic.progress import ReportedShape

MAX_PODS = 32
MAX_NODES = 16
MAX_SHORTAGES = 8
FEWER_RANKS = 8
"""The median of fewer ranks would not be that of the job."""
_MAX_NAME = 253
_encoder = msgspec.json.Encoder()


def model_facts(shape: ReportedShape | None) -> ModelShapeFacts | None:
    """Return the facts; None if nothing is reported."""
    if shape is None or shape == ReportedShape():
        return None
    return ModelShapeFacts(
        shape.params, shape.layers, shape.hidden, shape.heads, shape.vocab, shape.sequence
    )


@dataclass(frozen=True, slots=True)
class ReportedJob:
    """The job that facts are about."""

    name: str
    namespace: str = ""
    uid: str = ""


@dataclass(frozen=True, slots=True)
class FactsContent:
    """All facts of a job, before they are shortened."""

    segments: Sequence[SegmentFacts] = ()
    pods: Sequence[PodFacts] = ()
    nodes: Sequence[NodeFacts] = ()
    windows: RankWindows = NO_WINDOWS
    shortages: Sequence[DeviceShortageFacts] = ()
    model: ModelShapeFacts | None = None
    tuning_version: int | None = None
    tunes_batch: bool = False


def encode_facts(
    job: ReportedJob, content: FactsContent, max_bytes: int = FACTS_MAX_BYTES
) -> bytes:
    """Return the JSON of the facts, of at most ``max_bytes`` (at least 4 KiB)."""
    segments = list(content.segments)[-FACTS_MAX_SEGMENTS:]
    pods = sorted(content.pods, key=_pod_priority)[:MAX_PODS]
    nodes = sorted(content.nodes, key=_node_priority)[:MAX_NODES]
    ranks = list(content.windows.ranks)
    while True:
        facts = TrainingFacts(
            v=FACTS_VERSION,
            namespace=job.namespace[:_MAX_NAME],
            name=job.name[:_MAX_NAME],
            uid=job.uid[:_MAX_NAME],
            segments=tuple(segments),
            pods=tuple(pods),
            pods_total=len(content.pods),
            nodes=tuple(nodes),
            windows_since=content.windows.since_ms if ranks else 0,
            ranks=tuple(ranks),
            device_shortages=tuple(content.shortages)[-MAX_SHORTAGES:],
            model=content.model,
            tuning_version=content.tuning_version,
            tunes_batch=content.tunes_batch,
        )
        written = _encoder.encode(facts)
        if len(written) <= max_bytes:
            return written
        if len(pods) > 1:
            del pods[len(pods) // 2 :]
        elif len(nodes) > 1:
            del nodes[len(nodes) // 2 :]
        elif len(ranks) > FEWER_RANKS:
            ranks = select_ranks(ranks, len(ranks) // 2)
        elif segments:
            del segments[0]
        else:
            pods, nodes, ranks = [], [], []


def _pod_priority(pod: PodFacts) -> tuple[bool, int]:
    """Rank 0 first, which often needs more memory than others; then the highest peaks."""
    return pod.rank != 0, -(pod.peak_memory_bytes or 0)


def _node_priority(node: NodeFacts) -> tuple[bool, float]:
    """Nodes that failed first, then the slowest ones."""
    return node.passed, -(node.factor or 0.0)
