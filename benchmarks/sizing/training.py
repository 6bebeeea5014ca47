"""One rank of a training that is measured.

It counts what it measures by means that are not Gangline's: the sizes of the real tensors,
PyTorch's own trackers of memory and operations, and the kernel's counters of sent bytes.
"""

import os
import socket
import statistics
import struct
import time
import warnings
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.sizing import models

TRAFFIC_STEPS = 3
TIMEOUT = timedelta(minutes=5)
"""Of one exchange between ranks."""
_BYTES_SENT = 200
"""Offset of ``tcpi_bytes_sent`` in the kernel's ``struct tcp_info`` (Linux 4.19)."""


def sent_bytes() -> int:
    """Bytes that the sockets of this process have sent since they were opened."""
    total = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            copy = os.dup(int(name))
        except OSError:
            continue  # the descriptor of the folder itself
        try:
            with socket.socket(fileno=copy) as open_socket:
                info = open_socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        except OSError:
            continue  # no TCP socket
        total += struct.unpack_from("Q", info, _BYTES_SENT)[0]
    return total


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a tensor."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def state_bytes(model: nn.Module, optimizer: AdamW) -> dict[str, int]:
    """Count the bytes of weights, gradients and moments; the optimizer's step counters are none."""
    weights = [local(weight) for weight in model.parameters()]
    gradients = [local(weight.grad) for weight in model.parameters() if weight.grad is not None]
    moments = [
        local(state[name])
        for state in optimizer.state.values()
        for name in ("exp_avg", "exp_avg_sq")
    ]
    groups = {"weights": weights, "gradients": gradients, "optimizer": moments}
    return {name: sum(each.nbytes for each in group) for name, group in groups.items()}


class Training:
    """One model, wrapped and ready for steps."""

    def __init__(self, name: str, shape: list[int], sharding: str) -> None:
        torch.manual_seed(0)
        model: nn.Module = getattr(models, name)()
        if sharding == "fsdp":
            for unit in model.units:
                if any(True for _ in unit.parameters()):
                    fully_shard(unit)
            self.model: nn.Module = fully_shard(model)
        else:
            self.model = DistributedDataParallel(model)
        self.optimizer = AdamW(self.model.parameters())
        tokens = getattr(model, "tokens", None)
        self.inputs = torch.randint(tokens.num_embeddings, shape) if tokens else torch.rand(shape)

    def step(self) -> None:
        self.model(self.inputs).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def measure(self, steps: int, now: Callable[[], float]) -> dict[str, Any]:
        for _ in range(2):  # DDP arranges its buckets in the first
            self.step()
        found: dict[str, Any] = {"seconds": self._seconds(steps, now)} if steps else {}
        self.model(self.inputs).backward()
        self.optimizer.step()
        found["state_bytes"] = state_bytes(self.model, self.optimizer)
        self.optimizer.zero_grad()
        found["sent_bytes"] = self._sent()
        found["flops"] = self._flops()
        found["activation_bytes"] = self._activations()
        return found

    def _seconds(self, steps: int, now: Callable[[], float]) -> list[float]:
        taken = []
        for _ in range(steps):
            dist.barrier()
            begun = now()
            self.step()
            taken.append(now() - begun)
        return taken

    def _sent(self) -> float:
        dist.barrier()
        before = sent_bytes()
        for _ in range(TRAFFIC_STEPS):
            self.step()
        dist.barrier()
        return (sent_bytes() - before) / TRAFFIC_STEPS

    def _flops(self) -> int:
        counter = FlopCounterMode(display=False)
        # PyTorch has no formula for oneDNN's recurrent layers.
        plain = torch.backends.mkldnn.flags(enabled=False)
        # Nor has it one for attention on a CPU, other than as matrix products.
        products = sdpa_kernel(SDPBackend.MATH)
        with plain, products, counter:
            self.step()
        return int(counter.get_total_flops())

    def _activations(self) -> int:
        """Bytes of activations at the end of the forward pass, where they are most."""
        if isinstance(self.model, FSDPModule):
            tracker: MemTracker = FSDPMemTracker(self.model, self.optimizer)
            tracker.track_inputs((self.inputs,))
        else:
            tracker = MemTracker()
            tracker.track_external(self.model, self.optimizer)
        # oneDNN's recurrent layers keep a workspace that depends on the processor.
        with torch.backends.mkldnn.flags(enabled=False), tracker:
            loss = self.model(self.inputs)
            held = tracker.get_tracker_snapshot()[torch.device("cpu")]
            loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        made = sum(size for kind, size in held.items() if kind_name(kind) == "Activation")
        return made + self.inputs.nbytes


def kind_name(kind: Any) -> str:
    return str(getattr(kind, "value", kind))


def train(
    rank: int, ranks: int, store: str, sharding: str, cases: Iterable[str], steps: int = 0,
    *, processor_time: bool = False,
) -> list[dict[str, Any]]:  # fmt: skip
    """Train all cases, one after the other, with the other ranks.

    Args:
        rank: of this process.
        ranks: number of all.
        store: path of a file by which the ranks find each other; it does not exist before.
        sharding: ``ddp`` or ``fsdp``.
        cases: such as ``gpt_10m:4x128``.
        steps: number of steps whose time is measured.
        processor_time: count that of the process.
    """
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", store=dist.FileStore(store, ranks), rank=rank, world_size=ranks, timeout=TIMEOUT
    )
    rows = []
    for case in cases:
        name, _, shape = case.partition(":")
        training = Training(name, [int(size) for size in shape.split("x")], sharding)
        found = training.measure(steps, time.process_time if processor_time else time.perf_counter)
        if "seconds" in found:
            found["median_s"] = statistics.median(found["seconds"])
            found["fastest_s"] = min(found["seconds"])
        rows.append({"case": case, "sharding": sharding, **found})
    dist.destroy_process_group()
    return rows
