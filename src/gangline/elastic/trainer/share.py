"""How a global batch of fixed size is shared out among any number of processes.

Each process takes a run of records, as equal as whole records allow, and goes through it in
micro-batches. A mean loss over ``n`` records is weighted with ``n * world_size / global_batch``:
after data-parallel averaging over the processes, the gradient is the mean over the global batch,
whatever the number of processes and however uneven the shares.
"""

from dataclasses import dataclass


class ShareError(ValueError):
    """A global batch cannot be shared out like this; the message says why."""


@dataclass(frozen=True, slots=True)
class Share:
    """One process's part of each global batch."""

    global_batch: int
    world_size: int
    rank: int
    micro_batch: int
    """Records that the process can take at once."""

    def __post_init__(self) -> None:
        if self.micro_batch < 1:
            raise ShareError(f"a micro-batch of {self.micro_batch} records is none")
        if not 0 <= self.rank < self.world_size:
            raise ShareError(f"rank {self.rank} is not one of {self.world_size}")
        if self.global_batch < self.world_size:
            raise ShareError(
                f"a global batch of {self.global_batch} records leaves some of "
                f"{self.world_size} processes without any: make it larger or use fewer processes"
            )

    @property
    def start(self) -> int:
        """Where in the global batch the process begins."""
        size, more = divmod(self.global_batch, self.world_size)
        return self.rank * size + min(self.rank, more)

    @property
    def records(self) -> int:
        """How many records of each global batch the process takes."""
        size, more = divmod(self.global_batch, self.world_size)
        return size + (self.rank < more)

    @property
    def micro_batches(self) -> tuple[int, ...]:
        """Sizes of the micro-batches, as equal as can be: none is an outlier for statistics."""
        count = -(-self.records // self.micro_batch)
        size, more = divmod(self.records, count)
        return tuple(size + (i < more) for i in range(count))

    def weight(self, records: int) -> float:
        """Return what a mean loss over so many records is to be multiplied by."""
        return records * self.world_size / self.global_batch
