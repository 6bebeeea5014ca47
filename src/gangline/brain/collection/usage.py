"""Polls the metrics API for memory and CPU of pods, where the cluster serves it."""

import asyncio
import logging
from bisect import insort
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from gangline.api.quantity import QuantityError, parse_quantity
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import ApiError, NotFound

log = logging.getLogger(__name__)

PATH = "/apis/metrics.k8s.io/v1beta1/pods"
POLL_S = 30.0
ABSENT_POLL_S = 300.0
"""Interval while the cluster does not serve the metrics API."""
MAX_SAMPLES = 512


class PodSample(NamedTuple):
    """One reading of one pod."""

    namespace: str
    pod: str
    memory_bytes: int
    cpu_millis: int


def parse_samples(listing: Any) -> Iterator[PodSample]:
    """Yield the readings of a ``PodMetricsList``; entries that cannot be read are left out."""
    for item in listing.get("items") or () if isinstance(listing, dict) else ():
        try:
            meta = item["metadata"]
            usages = [each["usage"] for each in item["containers"]]
            memory = sum(parse_quantity(each["memory"]).value for each in usages)
            cpu = sum(parse_quantity(each["cpu"]).milli for each in usages)
            yield PodSample(meta["namespace"], meta["name"], memory, cpu)
        except (KeyError, TypeError, QuantityError):
            continue


class SampleBuffer:
    """The samples of one run: the peak of memory, and a sorted sample of CPU.

    Beyond ``MAX_SAMPLES`` every second reading is kept, so that the sample spans all of the run.
    """

    def __init__(self) -> None:
        self.peak_memory_bytes = 0
        self.count = 0
        self._cpu: list[int] = []
        self._stride = 1

    def add(self, sample: PodSample) -> None:
        self.peak_memory_bytes = max(self.peak_memory_bytes, sample.memory_bytes)
        if self.count % self._stride == 0:
            insort(self._cpu, sample.cpu_millis)
        self.count += 1
        if len(self._cpu) > MAX_SAMPLES:
            self._cpu = self._cpu[::2]
            self._stride *= 2

    @property
    def cpu_millis(self) -> tuple[int, ...]:
        return tuple(self._cpu)


async def poll_usage(
    client: ApiClient,
    receive: Callable[[Mapping[tuple[str, str], PodSample]], None],
    every_s: float = POLL_S,
) -> None:
    """Call ``receive`` with the readings by namespace and pod, until cancelled."""
    while True:
        wait_s = every_s
        try:
            listing = await client.request_json("GET", PATH)
            receive({(one.namespace, one.pod): one for one in parse_samples(listing)})
        except NotFound:
            wait_s = max(every_s, ABSENT_POLL_S)
        except ApiError as error:
            log.debug("cannot read the metrics API: %s", error)
        await asyncio.sleep(wait_s)
