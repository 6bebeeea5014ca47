"""Splits a global batch of fixed size among any number of processes.

Each process takes a contiguous part of nearly equal size, and splits it into micro-batches. A mean
loss over ``n`` records is weighted with ``n * world_size / global_batch``. After data-parallel
averaging the gradient is then the mean over the global batch, for any number of processes and any
sizes of the parts.
"""

from dataclasses import dataclass


class ShareError(ValueError):
    """A global batch cannot be split like this; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class Share:
    """One process's part of each global batch."""

    global_batch: int
    world_size: int
    rank: int
    micro_batch: int
    """Maximum number of records that the process takes in one step."""

    def __post_init__(self) -> None:
        if self.micro_batch < 1:
            raise ShareError(f"a micro-batch needs at least one record, not {self.micro_batch}")
        if not 0 <= self.rank < self.world_size:
            raise ShareError(f"rank {self.rank} is not one of {self.world_size}")
        if self.global_batch < self.world_size:
            raise ShareError(
                f"a global batch of {self.global_batch} records leaves some of "
                f"{self.world_size} processes without any: make it larger or use fewer processes"
            )

    @property
    def start(self) -> int:
        """Index of the process's first record in the global batch."""
        size, more = divmod(self.global_batch, self.world_size)
        return self.rank * size + min(self.rank, more)

    @property
    def records(self) -> int:
        """Number of records that the process takes from each global batch."""
        size, more = divmod(self.global_batch, self.world_size)
        return size + (self.rank < more)

    @property
    def micro_batches(self) -> tuple[int, ...]:
        """Sizes of the micro-batches, nearly equal, so that none is an outlier for statistics."""
        count = -(-self.records // self.micro_batch)
        size, more = divmod(self.records, count)
        return tuple(size + (i < more) for i in range(count))

    def weight(self, records: int) -> float:
        """Return the factor for a mean loss over ``records`` records."""
        return records * self.world_size / self.global_batch
