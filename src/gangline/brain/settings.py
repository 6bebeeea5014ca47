"""The administrator's settings of the Brain."""

import os
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from uuid import uuid4

from gangline.kube.client.client import ApiClient
from gangline.kube.controller.leader_election import LeaderElectionTiming
from gangline.kube.probes import Address

SEGMENT_VARIABLE = "GANGLINE_SEGMENT_SECONDS"


class BadSettings(Exception):
    """A setting is wrong: the message names it, and what would be right."""


@dataclass(frozen=True, slots=True)
class BrainSettings:
    """Built once, from defaults < environment < flags."""

    database: str
    """URL of the history: ``sqlite:////folder/brain.db``, ``postgresql://...``, ``mysql://...``."""
    migrate: bool = True
    """Bring an older schema up to date at the start. Otherwise it is refused."""
    digest_names: bool = False
    """Store digests of owners and names of jobs in place of the names."""
    advises: bool = True
    """Learn and advise. Otherwise the history and the records of jobs are written, and no more."""
    record_days: int = 90
    """How long the records of jobs are kept, with the last lines of failed replicas."""
    record_bytes: int = 10 * 2**30
    """How large all records together may be; the oldest are deleted first."""
    reads_folders: bool = False
    """Jobs run on this machine: event files of TensorBoard are read from folders of the node."""
    dry_run: bool = False
    """Advise only, whatever policies and jobs allow."""
    growth_check: Callable[[ApiClient, str, str, int], Awaitable[tuple[int, str]]] | None = None
    """The scheduler's trial placement: how many pods more of a gang and role would get nodes, and
    why not the others. None: only free devices limit the growth of a job."""
    namespaces: tuple[str, ...] = ()
    """The watched namespaces; empty: all."""
    policy_namespace: str = "kube-system"
    """Namespace of the ConfigMap ``gangline-brain-policy``."""
    cycle_s: float = 15.0
    """Seconds between evaluations. Segments close every 5 minutes, so faster ones find nothing."""
    usage_s: float = 30.0
    """Seconds between readings of the metrics API."""
    segment_s: float = field(default_factory=lambda: float(os.environ.get(SEGMENT_VARIABLE, "300")))
    """Length of a segment that is made from step numbers, as ``--segment-seconds`` of a master."""
    leader_election_namespace: str = "kube-system"
    leader_election_timing: LeaderElectionTiming = field(default_factory=LeaderElectionTiming)
    identity: str = field(default_factory=lambda: f"{socket.gethostname()}_{uuid4().hex[:8]}")
    """The name of this replica in the leader election."""
    api_address: Address | None = None
    """Address of the HTTP API; None: not served. Others than loopback need a certificate."""
    tls_certificate: str = ""
    """File with the certificate of the HTTP API; without it only loopback is served."""
    tls_key: str = ""
    """File with the key of the certificate."""
    metrics_address: Address | None = None
    """Address of ``/metrics``; None: not served."""
    health_address: Address | None = None
    """Address of ``/healthz`` and ``/readyz``; None: not served."""
