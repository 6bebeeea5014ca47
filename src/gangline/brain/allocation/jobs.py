"""What the allocation knows of jobs, nodes and waiting gangs. Sizes are counted in devices."""

import msgspec


class SizePoint(msgspec.Struct, frozen=True, kw_only=True):
    """Goodput of one size, in any unit that is the same for all sizes of the job."""

    devices: int
    goodput: float
    low: float | None = None
    """The ends of the range of 80 %; None: as ``goodput``."""
    high: float | None = None


class AllocationJob(msgspec.Struct, frozen=True, kw_only=True):
    """A running elastic job that lets the Brain change its size."""

    key: str
    devices: int
    """Now."""
    unit: int
    """Devices of one worker pod."""
    minimum: int
    maximum: int
    curve: tuple[SizePoint, ...]
    """By size. Sizes that are not in it are not given."""
    weight: float = 1.0
    """Weight of its priority."""
    queue: str = ""
    rest_s: float = float("inf")
    """Expected rest of its time."""
    cost_s: float = 60.0
    """What a change of its size costs."""
    fixed: bool = False
    """True if its size may not change now, because of a cool-down or a change under way."""
    nodes: tuple[str, ...] = ()
    """Node of each worker, by rank. The last ones leave first."""


class AllocationNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node with free devices, without those that are held for the first gang in line."""

    name: str
    free: int


class WaitingGang(msgspec.Struct, frozen=True, kw_only=True):
    """A gang that waits, and has a right to start by its queue."""

    key: str
    pods: int
    unit: int
    """Devices of one pod."""

    @property
    def devices(self) -> int:
        return self.pods * self.unit


class JobAllocation(msgspec.Struct, frozen=True, kw_only=True):
    """The size that one job should have."""

    key: str
    devices: int
    speedup: float
    """Goodput relative to the fair share."""
    fair: int
    changed: bool


def goodput_of(job: AllocationJob, devices: int) -> float | None:
    """Return the goodput of a size; between two known sizes by a line; None outside of them."""
    last: SizePoint | None = None
    for point in job.curve:
        if point.devices == devices:
            return point.goodput
        if last is not None and last.devices < devices < point.devices:
            share = (devices - last.devices) / (point.devices - last.devices)
            return last.goodput + share * (point.goodput - last.goodput)
        last = point
    return None
