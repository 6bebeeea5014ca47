"""Settings of the scheduler."""

import socket
from dataclasses import dataclass, field
from uuid import uuid4

from gangline.kube.controller.leader_election import LeaderElectionTiming
from gangline.kube.probes import Address
from gangline.scheduler.plugins.scores import ScoreWeights
from gangline.scheduler.preemption.preempt import EvictionPolicy
from gangline.scheduler.preemption.save_first import DEFAULT_SAVE_WAIT_S
from gangline.scheduler.queueing.order import ORDER_BY_AGE, FairnessPolicy
from gangline.scheduler.queueing.overcommit import OVERCOMMIT, AdmissionPolicy


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """Settings of the scheduler. The defaults suit a real cluster."""

    scheduler_names: frozenset[str] = frozenset({"gangline", "volcano"})
    """The scheduler serves pods with one of these names in ``schedulerName``. The embedded cluster,
    which has no other scheduler, adds ``default-scheduler``. ``volcano`` is removed where Volcano
    runs.
    """

    max_concurrent_bindings: int = 64
    """Maximal bindings in flight: more of them load the API server, fewer of them slow down large
    gangs.
    """

    status_writers: int = 8
    """Number of workers that write conditions. They never delay a cycle."""

    message_update_interval_s: float = 10.0
    """Minimal interval between writes of a message whose numbers alone change. Free amounts change
    with every pod, and each write notifies all watchers.
    """

    count_update_interval_s: float = 1.0
    """Minimal interval between status writes of a gang in which only the numbers of its running and
    ended pods have changed.
    """

    queue_status_interval_s: float = 2.0
    """Minimal interval between status writes of a queue: its usage changes with every pod."""

    gang_creation_grace_s: float = 3.0
    """Delay before missing members are reported. They are missing in every gang while its pods are
    being created, and reporting it would cost more than creating them.
    """

    preempt: bool = True
    """Gangs may evict gangs of lower priority in their queue. On by default: without different
    priorities it has no effect.
    """

    reclaim: bool = True
    """Queues may reclaim what others use above their fair share. On by default: a cluster that is
    divided into queues expects it. ``reclaimable: false`` exempts a queue.
    """

    save_wait_s: float = DEFAULT_SAVE_WAIT_S
    """Longest wait for the save of a gang whose pods are to be evicted, in seconds; 0: gangs are
    not asked to save. Gangs without checkpoints in memory are evicted immediately.
    """

    forecast_interval_s: float = 60.0
    """Minimal interval between forecasts of the starts of pending gangs, which are written to their
    status; 0: no forecasts. Each of them reads the cluster once, in a process of its own.
    """

    fairness: FairnessPolicy = ORDER_BY_AGE
    """Which shares order the gangs of a queue."""

    admission: AdmissionPolicy = OVERCOMMIT
    """How many gangs are admitted before their pods exist, and how long gangs may wait."""

    hierarchical: bool = False
    """Queues take their parents and weights from annotations (``volcano.sh/hierarchy``)."""

    ignored_settings: tuple[str, ...] = ()
    """Requested settings that have no effect: they are logged."""

    weights: ScoreWeights = field(default_factory=ScoreWeights)
    """Weights of the scores that rank eligible nodes."""

    metrics_address: Address | None = None
    """Address of the metrics server; None: no metrics."""

    health_address: Address | None = None
    """Address of the probes; None: no probes."""

    leader_election: bool = False
    """Required if two copies run: only the leader schedules."""

    leader_election_name: str = "gangline-scheduler"
    leader_election_namespace: str = "kube-system"
    leader_election_timing: LeaderElectionTiming = field(default_factory=LeaderElectionTiming)

    identity: str = field(default_factory=lambda: f"{socket.gethostname()}_{uuid4().hex[:8]}")
    """Name of this copy in the leader election."""

    @property
    def policy(self) -> EvictionPolicy:
        return EvictionPolicy(self.preempt, self.reclaim, self.fairness, self.admission)
