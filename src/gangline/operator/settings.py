"""What an administrator can choose about the operator."""

import socket
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from uuid import uuid4


class GangScheduling(StrEnum):
    """Whether jobs get pod groups."""

    AUTO = "auto"
    """As soon as the cluster knows PodGroups; looked for again every half minute."""
    OFF = "off"


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    """Built once, from defaults < environment < flags."""

    namespace: str | None = None
    """The one namespace to work in; None for all. Set it where cluster-wide rights are refused."""
    gang_scheduling: GangScheduling = GangScheduling.AUTO
    """``off`` on clusters whose scheduler does not know gangs though the PodGroup kind exists."""
    scheduler_name: str = "gangline"
    """Written into pods of a gang whose template names none; ``volcano`` for Volcano."""
    init_image: str = ""
    """Image in which PyTorch workers wait for the master's name; empty: they need not."""
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
    identity: str = field(default_factory=lambda: f"{socket.gethostname()}_{uuid4().hex[:8]}")
    """Who this copy is, among those that stand for election."""
    bind_address: str = "127.0.0.1"
    """Where ``/metrics``, ``/healthz`` and ``/readyz`` are served."""
    port: int | None = None
    """Their port; None serves nothing, 0 takes a free one."""

    @property
    def force_delete_after(self) -> timedelta:
        """``force_delete_after_s`` as a duration."""
        return timedelta(seconds=self.force_delete_after_s)
