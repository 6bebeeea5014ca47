"""Memory and processors that the pods of a job use, and failures for lack of device memory.

Processors: means of one minute, in a histogram whose buckets grow by 5 percent, as in the vertical
pod autoscaler. A pod needs a fixed amount of memory here, however long it runs. Failures are
recorded by the micro-batch that was too large.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from gangline.api.failure import DEVICE_OUT_OF_MEMORY
from gangline.api.jobs.training_facts import DeviceShortageFacts, PodFacts
from gangline.elastic.protocol.messages import FailureReport, Heartbeat, NodeReport, Tuning

_MAX_MODEL = 128
MINUTE_S = 60.0
MAX_PODS = 2048
"""Beyond it the pods that ended first are dropped."""
_GROWTH = math.log(1.05)


@dataclass(slots=True)
class PodUsage:
    name: str
    rank: int
    since_ms: int
    until_ms: int
    peak_bytes: int | None = None
    buckets: dict[int, int] = field(default_factory=dict)
    max_cpus: float = 0.0
    minute_at: float = 0.0
    minute_cpus: float = 0.0
    minute_samples: int = 0

    def add_cpus(self, cpus: float, now: float) -> None:
        """Add a sample; a minute that is over becomes one observation."""
        if self.minute_samples and now - self.minute_at >= MINUTE_S:
            self._end_minute()
        if not self.minute_samples:
            self.minute_at = now
        self.minute_cpus += cpus
        self.minute_samples += 1

    def _end_minute(self) -> None:
        mean = self.minute_cpus / self.minute_samples
        bucket = _bucket(mean)
        self.buckets[bucket] = self.buckets.get(bucket, 0) + 1
        self.max_cpus = max(self.max_cpus, mean)
        self.minute_cpus, self.minute_samples = 0.0, 0

    def facts(self) -> PodFacts:
        """Return what is known. The first minute counts before it is over."""
        buckets, highest = self.buckets, self.max_cpus
        if not buckets and self.minute_samples:
            mean = self.minute_cpus / self.minute_samples
            buckets, highest = {_bucket(mean): 1}, mean
        samples = sum(buckets.values())
        p50, p95 = _percentile(buckets, samples, 0.5), _percentile(buckets, samples, 0.95)
        most = round(highest * 1000)
        return PodFacts(
            name=self.name,
            rank=self.rank,
            since=self.since_ms,
            until=self.until_ms,
            peak_memory_bytes=self.peak_bytes,
            cpu_millis_p50=None if p50 is None else min(p50, most),
            cpu_millis_p95=None if p95 is None else min(p95, most),
            cpu_millis_max=most if samples else None,
            samples=samples,
        )


class PodTable:
    """The pods of a job, those that have ended included."""

    def __init__(self, earlier: Iterable[PodFacts] = ()) -> None:
        self._earlier = {pod.name: pod for pod in earlier}
        self._by_node: dict[int, PodUsage] = {}

    def observe(self, heartbeat: Heartbeat, rank: int, now: float, wall_ms: int) -> None:
        """Add a heartbeat of a node whose workers run."""
        node, details = heartbeat.node_id, heartbeat.node
        pod = self._by_node.get(node)
        if pod is None:
            name = details.pod if details is not None else ""
            if not name:
                return
            pod = self._by_node[node] = PodUsage(name, rank, wall_ms, wall_ms)
            if len(self._by_node) > MAX_PODS:
                del self._by_node[next(iter(self._by_node))]
        pod.rank, pod.until_ms = rank, max(pod.until_ms, wall_ms)
        if heartbeat.resources is not None and 0 <= heartbeat.resources.cpus < math.inf:
            pod.add_cpus(heartbeat.resources.cpus, now)
        if details is not None and details.memory_peak_bytes:
            pod.peak_bytes = max(pod.peak_bytes or 0, details.memory_peak_bytes)

    def facts(self) -> list[PodFacts]:
        current = [pod.facts() for pod in self._by_node.values()]
        merged = [_merge(self._earlier.get(pod.name), pod) for pod in current]
        names = {pod.name for pod in current}
        return [*(pod for name, pod in self._earlier.items() if name not in names), *merged]


def _merge(earlier: PodFacts | None, pod: PodFacts) -> PodFacts:
    """Combine what two masters saw of one pod; processors are those of the longer observation."""
    if earlier is None:
        return pod
    longer = earlier if earlier.samples > pod.samples else pod
    peaks = [one.peak_memory_bytes for one in (earlier, pod) if one.peak_memory_bytes is not None]
    return PodFacts(
        name=pod.name,
        rank=pod.rank,
        since=min(earlier.since, pod.since),
        until=max(earlier.until, pod.until),
        peak_memory_bytes=max(peaks, default=None),
        cpu_millis_p50=longer.cpu_millis_p50,
        cpu_millis_p95=longer.cpu_millis_p95,
        cpu_millis_max=longer.cpu_millis_max,
        samples=longer.samples,
    )


def _bucket(cpus: float) -> int:
    return max(0, math.ceil(math.log(max(cpus, 0.001) * 1000) / _GROWTH))


def _percentile(buckets: dict[int, int], samples: int, share: float) -> int | None:
    """Return the upper end of the bucket with this percentile, in thousandths of a processor."""
    if not samples:
        return None
    left = math.ceil(samples * share)
    for bucket in sorted(buckets):
        left -= buckets[bucket]
        if left <= 0:
            return round(math.exp(bucket * _GROWTH))
    return None


class ShortageTable:
    """The last shortage of each device model and micro-batch."""

    def __init__(self, earlier: Iterable[DeviceShortageFacts] = ()) -> None:
        self._latest = {
            (shortage.device_model, shortage.micro_batch): shortage for shortage in earlier
        }
        self.observed = 0

    def observe(
        self,
        failure: FailureReport,
        report: NodeReport | None,
        tuning: Tuning | None,
        wall_ms: int,
    ) -> None:
        """Add a failure, unless it had another cause or the micro-batch is not known."""
        if failure.cause != DEVICE_OUT_OF_MEMORY or report is None or not report.device_model:
            return
        micro_batch = _micro_batch(report, tuning)
        if not micro_batch:
            return
        model = report.device_model[:_MAX_MODEL]
        self._latest.pop((model, micro_batch), None)
        self._latest[model, micro_batch] = DeviceShortageFacts(
            device_model=model, micro_batch=micro_batch, at=wall_ms
        )
        self.observed += 1

    def facts(self) -> list[DeviceShortageFacts]:
        return [*self._latest.values()]


def _micro_batch(report: NodeReport, tuning: Tuning | None) -> int | None:
    """Return the tuned micro-batch if the node has applied it: its first step can fail."""
    if tuning is not None and report.tunes_batch and report.tuning_version == tuning.version:
        tuned = tuning.devices.get(report.device_model, tuning.dataloader).batch_size
        return tuned or report.batch_size
    return report.batch_size
