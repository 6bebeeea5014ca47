"""What an adviser sees: one job, similar runs, the cluster, the time."""

import msgspec

from gangline.brain.facts.records import MemorySample, NodeCapacity, NodeSpeed, RankSpeed, Run


class SimilarRuns(msgspec.Struct, frozen=True, kw_only=True):
    """Runs that are comparable with the job, best first; the job itself is never among them."""

    level: int
    """0: same specification, 1: same family, 2: family without the command, 3: same image and
    strategy, 4: nearest model of any namespace."""
    runs: tuple[Run, ...]
    """Complete successful runs."""
    bounds: tuple[Run, ...] = ()
    """Running, failed or partly watched runs: they count as lower bounds only."""
    namespaces: int = 1


class ClusterView(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster at the time of the view."""

    nodes: tuple[NodeCapacity, ...] = ()
    price: float = 0.0
    """Loss per GPU of the best refused use: 0 when devices are idle, up to 1."""
    node_speeds: tuple[NodeSpeed, ...] = ()

    @property
    def largest_memory_bytes(self) -> int | None:
        """Memory of the largest node; None if no node is known."""
        return max((node.memory_bytes for node in self.nodes), default=None)

    @property
    def largest_cpu_millis(self) -> int | None:
        """CPU of the largest node; None if no node is known."""
        return max((node.cpu_millis for node in self.nodes), default=None)


class View(msgspec.Struct, frozen=True, kw_only=True):
    """Everything an adviser may use."""

    now_ms: int
    run: Run
    """The job that is advised, running or waiting, with what is known of it so far."""
    similar: SimilarRuns | None = None
    """None: nothing is similar."""
    cluster: ClusterView = ClusterView()
    rank_speeds: tuple[RankSpeed, ...] = ()
    memory_samples: tuple[MemorySample, ...] = ()
    """Memory of the ranks that run now, oldest first; one sample a minute is enough."""
    save_seconds: float | None = None
    """Measured cost of one checkpoint; the next two as the master reports them."""
    checkpoint_interval_s: float | None = None
    restart_seconds: float | None = None
    device_memory_bytes: int | None = None
    """Memory of one device of the job."""
    remaining_s: float | None = None
    """Expected rest of the job, where the master knows the steps that are left."""
