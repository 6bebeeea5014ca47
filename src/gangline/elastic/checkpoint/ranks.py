"""The ranks that save together: a process group, or one process alone."""

import contextlib
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")


class SaveGroup:
    """All ranks of the job, with the few collectives that checkpoints need.

    The collectives run on a gloo group of their own, so that they never queue behind those of
    training.
    """

    def __init__(self) -> None:
        self.group: dist.ProcessGroup | None = None
        self.rank, self.world = 0, 1
        if dist.is_available() and dist.is_initialized():
            self.rank, self.world = dist.get_rank(), dist.get_world_size()
        if self.world > 1:
            self.group = dist.new_group(backend="gloo")

    def close(self) -> None:
        if self.group is not None and dist.is_initialized():
            with contextlib.suppress(ValueError):  # it has ended together with the default group
                dist.destroy_process_group(self.group)
        self.group = None

    def all_gather(self, value: T) -> list[T]:
        """Return the values of all ranks, on every rank."""
        if self.group is None:
            return [value]
        gathered: list[T | None] = [None] * self.world
        dist.all_gather_object(gathered, value, group=self.group)
        return gathered  # type: ignore[return-value]

    def broadcast(self, value: T) -> T:
        """Return the value of rank 0, on every rank."""
        if self.group is None:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.group)
        return box[0]

    def scatter(self, values: list[T] | None) -> T:
        """Send to each rank its own element of rank 0's list."""
        if self.group is None:
            assert values is not None
            return values[0]
        box: list[T | None] = [None]
        dist.scatter_object_list(box, values, src=0, group=self.group)
        return box[0]  # type: ignore[return-value]

    def any_rank(self, claim: bool) -> bool:
        """Return whether the claim is true on any rank."""
        if self.group is None:
            return claim
        flag = torch.tensor([int(claim)])
        dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=self.group)
        return bool(flag.item())

    def all_agree(self, claim: bool, value: int) -> bool:
        """Return whether the claim is true, and ``value`` the same, on all ranks.

        ``value`` fits into a signed integer of 64 bits, and so does its negation.
        """
        if self.group is None:
            return claim
        extremes = torch.tensor([int(not claim), value, -value])
        dist.all_reduce(extremes, op=dist.ReduceOp.MAX, group=self.group)
        refused, largest, negated_smallest = extremes.tolist()
        return not refused and largest == -negated_smallest

    def agreeing_places(self, values: Sequence[int | None]) -> list[bool]:
        """Return for each place whether all ranks that have a value there have the same one.

        All ranks give as many places. A value fits into a signed integer of 64 bits, and so does
        its negation.
        """
        if self.group is None:
            return [True for _ in values]
        present = [torch.iinfo(torch.int64).min if value is None else value for value in values]
        negated = [torch.iinfo(torch.int64).min if value is None else -value for value in values]
        extremes = torch.tensor([present, negated])
        dist.all_reduce(extremes, op=dist.ReduceOp.MAX, group=self.group)
        largest, negated_smallest = extremes
        return (largest == -negated_smallest).tolist()  # type: ignore[no-any-return]


def node_name(memory: Path) -> str:
    """Return a name that is unique for one shared memory: host, boot and folder."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    identity = boot.read_text().strip() if boot.exists() else ""
    return f"{socket.gethostname()}/{identity}/{memory}"
