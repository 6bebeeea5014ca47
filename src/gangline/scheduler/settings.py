"""The scheduler's settings, built once by who starts it."""

import socket
from dataclasses import dataclass, field
from uuid import uuid4

from gangline.kube.probes import Address
from gangline.scheduler.fairness import BY_AGE, Fairness
from gangline.scheduler.plugins.node_scores import Weights
from gangline.scheduler.victims import Policy


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """What the scheduler may be told. The defaults suit a real cluster."""

    scheduler_names: frozenset[str] = frozenset({"gangline", "volcano"})
    """Pods with one of these in ``schedulerName`` are ours. The embedded cluster, which has no
    other scheduler, adds ``default-scheduler``. ``volcano`` is left out where Volcano runs."""

    bindings_at_once: int = 64
    """Bindings under way at the same time: more load the API server, fewer slow large gangs."""

    status_writers: int = 8
    """Workers that write conditions. They never hold up a decision."""

    reworded_after_s: float = 10.0
    """A reason whose numbers alone have changed is written again after so long, not before: free
    amounts change with every pod, and each rewriting wakes everybody who watches."""

    queue_status_every_s: float = 2.0
    """What a queue holds is written at most so often: it changes with every pod."""

    forming_s: float = 3.0
    """That members are still missing is said only after so long: it is so of every gang while its
    pods are created, and saying it would cost more than creating them."""

    preempt: bool = True
    """Gangs may push out others of lower priority in their queue. On, for who gives priorities
    means them; nobody is pushed out while all priorities are equal."""

    reclaim: bool = True
    """Queues may take back what others use above their share. On, for who divides a cluster into
    queues means that too; ``reclaimable: false`` on a queue exempts it."""

    lodge: bool = False
    """Gangs may use planned room for as long as their like took, and are evicted if they outstay
    that. Off, for nobody expects to be evicted for having come early; on pays where jobs of a
    kind take equally long, and can go back to a checkpoint."""

    fairness: Fairness = BY_AGE
    """Whose shares the order within a queue goes by."""

    hierarchical: bool = False
    """Queues stand where their annotations say (``volcano.sh/hierarchy``)."""

    unheeded: tuple[str, ...] = ()
    """What was asked for and makes no difference: it is said in the log."""

    weights: Weights = field(default_factory=Weights)
    """How much each consideration counts in the choice between nodes that will do."""

    metrics_address: Address | None = None
    """Where metrics are served; None: nowhere."""

    health_address: Address | None = None
    """Where probes are answered; None: nowhere."""

    leader_election: bool = False
    """Needed as soon as two copies run: only one of them decides."""

    leader_election_name: str = "gangline-scheduler"
    leader_election_namespace: str = "kube-system"

    identity: str = field(default_factory=lambda: f"{socket.gethostname()}_{uuid4().hex[:8]}")
    """Who this copy is, among those that stand for election."""

    @property
    def policy(self) -> Policy:
        """What decisions may do."""
        return Policy(self.preempt, self.reclaim, self.fairness, self.lodge)
