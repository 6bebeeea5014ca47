"""What an administrator can choose about the operator."""

import socket
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from uuid import uuid4

from gangline.kube.leader import Timing
from gangline.kube.probes import Address
from gangline.operator.webhook.settings import WebhookSettings


class GangScheduling(StrEnum):
    """Whether jobs get pod groups."""

    AUTO = "auto"
    """As soon as the cluster knows PodGroups; looked for again every half minute."""
    OFF = "off"


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    """Built once, from defaults < environment < flags."""

    namespaces: tuple[str, ...] = ()
    """The namespaces to work in; none for all. Set them where cluster-wide rights are refused."""
    kinds: frozenset[str] = frozenset()
    """The kinds to run, such as ``PyTorchJob``; none for all. Leave out what another runs."""
    gang_scheduling: GangScheduling = GangScheduling.AUTO
    """``off`` on clusters whose scheduler does not know gangs though the PodGroup kind exists."""
    scheduler_name: str = "gangline"
    """Written into pods of a gang whose template names none; ``volcano`` for Volcano."""
    init_image: str = ""
    """Image in which PyTorch workers wait for the master's name; empty: they need not."""
    cluster_domain: str = ""
    """Appended to the addresses in ``TF_CONFIG``, such as ``cluster.local``; empty: nothing."""
    mpi_kubectl_image: str = ""
    """Image that brings ``kubectl`` into MPI launchers; empty: they do with what they have."""
    paddle_init_image: str = ""
    """Image in which Paddle's pods wait for each other's names; empty: they need not."""
    paddle_etcd_server: str = ""
    """``host:port`` of the etcd in which elastic Paddle workers meet; empty: each job names one."""
    elastic_master_image: str = ""
    """Image of the masters of ElasticJobs; empty: that of the workers."""
    workers: int = 256
    """Jobs looked at at the same time. They mostly wait for their turn to write, and the more of
    them wait, the better the urgent writes of all come before the others."""
    writes_in_flight: int = 32
    """Requests that the operator sends at the same time, over all jobs."""
    force_delete_after_s: float = 10.0
    """How long a pod may overstay its grace period on a lost node."""
    leader_election: bool = False
    """Needed as soon as two copies run: only one of them works."""
    leader_election_name: str = "gangline-operator"
    leader_election_namespace: str = "kube-system"
    leader_election_timing: Timing = field(default_factory=Timing)
    """How fast a lost leader is replaced, and how often the lease is written."""
    identity: str = field(default_factory=lambda: f"{socket.gethostname()}_{uuid4().hex[:8]}")
    """Who this copy is, among those that stand for election."""
    webhook: WebhookSettings | None = None
    """How jobs are checked before they are stored; None: they are only checked when they run."""
    resync_s: float | None = 36_000.0
    """How often every job is looked at though nothing has changed, as a safety net; None: never."""
    metrics_address: Address | None = None
    """Where ``/metrics`` is served; None serves it nowhere."""
    health_address: Address | None = None
    """Where ``/healthz`` and ``/readyz`` are served; None serves them nowhere."""

    @property
    def force_delete_after(self) -> timedelta:
        """``force_delete_after_s`` as a duration."""
        return timedelta(seconds=self.force_delete_after_s)
