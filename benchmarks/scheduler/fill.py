"""Processor time in which the scheduler reads pods into its cache, without a server.

The body of a list in protobuf, as the API server writes it, is split, decoded and stored as at a
start. Once all pods have the same texts, as copies have them, and once each pod has a volume for
its token with a unique name, as since Kubernetes 1.21.
"""

import gc
import time
import uuid
from collections.abc import Callable

import msgspec

from gangline.api.core.node import Node
from gangline.kube.client.client import ApiClient
from gangline.kube.config.config import ClusterConfig
from gangline.kube.informers.indexer import Indexer
from gangline.kube.protobuf.framing import MAGIC, ListSplitter
from gangline.kube.protobuf.reader import object_reader
from gangline.scheduler.cache.convert import node_info
from gangline.scheduler.informers import SchedulerInformers
from gangline.scheduler.settings import SchedulerSettings
from gangline.scheduler.types import GroupKey, Reservation
from gangline.scheduler.wire import LEAN_PODS, LeanPod, slim_pod

PODS, PODS_PER_NODE, GANG = 30_000, 30, 8
TURNS = 5
CHUNK_BYTES = 1 << 18
"""Size of the parts in which the body arrives."""
OWNED_FIELDS = b'{"f:metadata":{"f:annotations":{}},"f:spec":{%s}}' % b",".join(
    b'"f:field%d":{}' % number for number in range(25)
)
"""As long as the managed fields of a pod."""


class IgnoreChanges:
    """A listener of the informers for which nothing has to be done."""

    def on_change(self) -> None: ...

    def on_group_changed(self, group: GroupKey) -> None: ...

    def on_reservation_found(self, group: GroupKey, reservation: Reservation) -> None: ...

    def request_cycle_after(self, delay_s: float) -> None: ...


def pod(index: int, token: str) -> bytes:
    """A pod that runs, in the fields that an API server stores."""
    annotation = "scheduling.k8s.io/group-name", f"former-{index // GANG:05d}"
    metadata = _message(
        (1, f"r-{index:06d}"),
        (3, "full"),
        (5, str(uuid.UUID(int=index * 7919))),
        (6, str(1000 + index)),
        (8, _number(1, 1_700_000_000)),
        (12, _message((1, annotation[0]), (2, annotation[1]))),
        (17, _message((1, "python"), (2, "Update"), (3, "v1"), (7, _message((1, OWNED_FIELDS))))),
    )
    requests = [
        (2, _message((1, name), (2, _message((1, amount)))))
        for name, amount in (("cpu", "1"), ("memory", "1Gi"))
    ]
    mount = _message((1, token), (3, "/var/run/secrets/kubernetes.io/serviceaccount"))
    container = _message((1, "c"), (2, "none:1"), (8, _message(*requests)), (9, mount))
    spec = _message(
        (1, _message((1, token), (2, _message((26, _number(2, 420)))))),
        (2, container),
        (3, "Always"),
        (6, "ClusterFirst"),
        (8, "default"),
        (10, f"fake-{index // PODS_PER_NODE:05d}"),
        (19, "gangline"),
        (22, _message((2, "Exists"))),
        (31, "PreemptLowerPriority"),
    )
    return _message((1, metadata), (2, spec + _number(25, 0)), (3, _message((1, "Running"))))


def list_body(token: Callable[[], str]) -> bytes:
    """The body of a list of pods."""
    items = b"".join(_message((2, pod(index, token()))) for index in range(PODS))
    return MAGIC + _message((2, _message((1, _message((2, "1")))) + items))


def measure(body: bytes) -> tuple[float, float]:
    """Return the processor time for each pod in microseconds: until it is decoded, and for storing
    it in the cache.
    """
    informers = SchedulerInformers(
        ApiClient(ClusterConfig("https://127.0.0.1:1")), SchedulerSettings(), IgnoreChanges()
    )
    allocatable = {"cpu": "32", "memory": "128Gi", "pods": "110"}
    for index in range(PODS // PODS_PER_NODE):
        node = {"metadata": {"name": f"fake-{index:05d}"}, "status": {"allocatable": allocatable}}
        informers.state.set_node(node_info(msgspec.convert(node, Node)))
    indexer: Indexer[LeanPod] = Indexer({})
    indexer.add_listener(informers._on_pod)
    read, splitter = object_reader(LEAN_PODS).read, ListSplitter()
    pods: list[LeanPod] = []
    begun = time.process_time()
    for position in range(0, len(body), CHUNK_BYTES):
        parts = splitter.feed(body[position : position + CHUNK_BYTES])
        pods += map(slim_pod, map(read, parts))
    decoded = time.process_time()
    indexer.replace(pods)
    stored = time.process_time()
    assert len(informers.state.pods) == PODS
    return (decoded - begun) / PODS * 1e6, (stored - decoded) / PODS * 1e6


def _message(*fields: tuple[int, str | bytes]) -> bytes:
    """Return a message of texts and messages."""
    return b"".join(
        _varint(number << 3 | 2) + _varint(len(raw)) + raw
        for number, raw in (
            (number, value.encode() if isinstance(value, str) else value)
            for number, value in fields
        )
    )


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def main() -> None:
    tokens = {
        "equal volumes": lambda: "default-token-abcde",
        "unique volumes": lambda: f"kube-api-access-{uuid.uuid4().hex[:5]}",
    }
    gc.disable()  # as in the scheduler while it fills its cache
    for name, token in tokens.items():
        body = list_body(token)
        turns = [measure(body) for _ in range(TURNS)]
        decode, store = (min(times) for times in zip(*turns, strict=True))
        print(
            f"{name}: {len(body) / PODS:.0f} bytes, {decode:.1f} µs decoding and {store:.1f} µs "
            f"storing each of {PODS:,} pods (best of {TURNS})"
        )
    gc.enable()


if __name__ == "__main__":
    main()
