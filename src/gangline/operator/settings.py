"""The administrator's settings of the operator."""

import socket
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from uuid import uuid4

from gangline.kube.controller.leader_election import LeaderElectionTiming
from gangline.kube.probes import Address
from gangline.operator.webhook.settings import WebhookSettings


class GangScheduling(StrEnum):
    """Whether jobs get pod groups."""

    AUTO = "auto"
    """As soon as the cluster supports PodGroups; checked every half minute."""
    OFF = "off"


class PodGroupKind(StrEnum):
    """Which PodGroups jobs get."""

    VOLCANO = "volcano"
    KUBERNETES = "kubernetes"
    """Those of ``scheduling.k8s.io``, from Kubernetes 1.37 on."""


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    """Built once, from defaults < environment < flags."""

    namespaces: tuple[str, ...] = ()
    """The watched namespaces; empty: all. Set them if the operator has no cluster-wide rights."""
    kinds: frozenset[str] = frozenset()
    """The enabled kinds, such as ``PyTorchJob`` or ``PaddleJob.kubeflow.org``; empty: all.
    Omit kinds that another operator runs.
    """
    gang_scheduling: GangScheduling = GangScheduling.AUTO
    """``off`` on clusters that have the PodGroup kind but no scheduler that implements it."""
    pod_groups: PodGroupKind = PodGroupKind.VOLCANO
    scheduler_name: str = "gangline"
    """Scheduler of pods in a gang whose template names none; ``volcano`` for Volcano."""
    init_image: str = ""
    """Image in which PyTorch workers wait for the master's name; empty: they do not wait."""
    cluster_domain: str = ""
    """Appended to the addresses in ``TF_CONFIG``, such as ``cluster.local``; empty: nothing."""
    mpi_kubectl_image: str = ""
    """Image that adds ``kubectl`` to MPI launchers; empty: they use what their image contains."""
    paddle_init_image: str = ""
    """Image in which Paddle pods wait for each other's names; empty: they do not wait."""
    paddle_etcd_server: str = ""
    """``host:port`` of the etcd for the rendezvous of elastic Paddle workers; empty: set in each
    job.
    """
    elastic_master_image: str = ""
    """Image of the masters of ElasticJobs; empty: the workers' image."""
    workers: int = 256
    """Number of jobs that are reconciled concurrently. Most of them wait for the write limiter, and
    the more of them wait, the better it can prefer urgent writes.
    """
    writes_in_flight: int = 32
    """Number of concurrent write requests, over all jobs."""
    force_delete_after_s: float = 10.0
    """Seconds after its grace period at which a pod on a lost node is deleted by force."""
    leader_election: bool = False
    """Required if several replicas of the operator run: only the leader works."""
    leader_election_name: str = "gangline-operator"
    leader_election_namespace: str = "kube-system"
    leader_election_timing: LeaderElectionTiming = field(default_factory=LeaderElectionTiming)
    """How fast a lost leader is replaced, and how often the lease is renewed."""
    identity: str = field(default_factory=lambda: f"{socket.gethostname()}_{uuid4().hex[:8]}")
    """The name of this replica in the leader election."""
    webhook: WebhookSettings | None = None
    """Settings of the admission webhook; None: jobs are validated only when they run."""
    resync_s: float | None = 36_000.0
    """Seconds between complete resyncs, in case a watch missed a change; None: never."""
    metrics_address: Address | None = None
    """Address of ``/metrics``; None: not served."""
    health_address: Address | None = None
    """Address of ``/healthz`` and ``/readyz``; None: not served."""

    @property
    def force_delete_after(self) -> timedelta:
        return timedelta(seconds=self.force_delete_after_s)
