"""The flags of ``gangline operator``, in groups."""

import os
from collections.abc import Callable
from functools import partial, reduce
from typing import Any, TypeVar

import click

from gangline.cli.setting import BindAddress, Duration, CommaSeparated, env_option, env_flag
from gangline.cli.webhook_flags import WEBHOOK_FLAGS

F = TypeVar("F", bound=Callable[..., Any])

PREFIX = "GANGLINE_OPERATOR"

_option = partial(env_option, PREFIX)
_flag = partial(env_flag, PREFIX)


def _default_address(address: str) -> str:
    """Return the default address: serve metrics and probes in a pod, but not on a workstation."""
    return address if os.environ.get("KUBERNETES_SERVICE_HOST") else "0"


_BEHAVIOUR = (
    _option(
        "--namespace",
        "-n",
        "namespaces",
        type=CommaSeparated(),
        multiple=True,
        upstream="KUBEFLOW_NAMESPACE",
        help="Reconcile this namespace only; may be repeated. Rights in these suffice.",
    ),
    _option(
        "--enable-scheme",
        "--kind",
        "kinds",
        type=CommaSeparated(),
        multiple=True,
        help="Reconcile this kind, such as PyTorchJob; may be repeated. Default: all kinds.",
    ),
    _option(
        "--gang-scheduling",
        type=click.Choice(["auto", "off"]),
        default="auto",
        show_default=True,
        help="Create a PodGroup for each job once the cluster has the PodGroup CRD, or never.",
    ),
    _option(
        "--enable-gang-scheduling",
        type=bool,
        is_flag=False,
        flag_value="true",
        hidden=True,
        help="Flag of MSJob's operator: =false disables gang scheduling.",
    ),
    _option(
        "--scheduler-name",
        default="gangline",
        show_default=True,
        help="Scheduler of a gang's pods whose template has none.",
    ),
    _option(
        "--gang-scheduler-name",
        "--scheduling",
        "gang_scheduler_name",
        default="",
        help="Flag of the upstream operator: volcano for Volcano's scheduler; none for no gangs.",
    ),
    _option(
        "--pytorch-init-container-image",
        "init_image",
        default="",
        help="Image of an init container that waits for the master's DNS name; default: none.",
    ),
    _option(
        "--paddle-init-container-image",
        "--initImage",
        "paddle_init_image",
        default="",
        help="Image of an init container that waits for DNS names of Paddle pods; default: none.",
    ),
    _option(
        "--paddle-etcd-server",
        "--etcd-server",
        "paddle_etcd_server",
        default="",
        help="host:port of the etcd for the rendezvous of elastic Paddle workers.",
    ),
    _option(
        "--master-image",
        "elastic_master_image",
        default="",
        help="Image of the masters of ElasticJobs; default: the image of the workers.",
    ),
    _option(
        "--mpi-kubectl-delivery-image",
        "mpi_kubectl_image",
        default="",
        help="Image that provides kubectl to MPI launchers; default: none.",
    ),
    _option(
        "--cluster-domain",
        default="",
        upstream="CUSTOM_CLUSTER_DOMAIN",
        help="Suffix of the addresses in TF_CONFIG, such as cluster.local.",
    ),
)

_THROUGHPUT = (
    _option(
        "--controller-threads",
        "--workers",
        "workers",
        type=click.IntRange(min=1),
        default=256,
        show_default=True,
        help="Number of concurrent reconciles, over all kinds.",
    ),
    _option(
        "--kube-api-qps",
        type=float,
        default=0.0,
        help="Limit of requests a second to the API server; default: 0, no limit.",
    ),
    _option(
        "--kube-api-burst",
        type=click.IntRange(min=1),
        help="Burst of requests under --kube-api-qps; default: 1.5 times --kube-api-qps.",
    ),
    _option(
        "--resync-period",
        type=Duration(),
        default="10h",
        show_default=True,
        help="Interval for reconciling unchanged jobs; 0 disables it.",
    ),
)

_ELECTION = (
    _flag(
        "--leader-elect",
        "leader_election",
        help="Elect a leader, for several replicas.",
    ),
    _option(
        "--leader-election-id",
        "leader_election_name",
        default="gangline-operator",
        show_default=True,
        help="Name of the lease.",
    ),
    _option(
        "--leader-election-namespace",
        default="",
        help="Namespace of the lease; the operator's own (MY_POD_NAMESPACE), else kube-system.",
    ),
    _option(
        "--leader-elect-lease-duration",
        "lease_duration",
        type=Duration(),
        default="15s",
        show_default=True,
        help="Duration after which another replica may take a lease that was not renewed.",
    ),
    _option(
        "--leader-elect-renew-deadline",
        "renew_deadline",
        type=Duration(),
        default="10s",
        show_default=True,
        help="Duration after which a leader that cannot renew stops.",
    ),
    _option(
        "--leader-elect-retry-period",
        "retry_period",
        type=Duration(),
        default="2s",
        show_default=True,
        help="Interval between attempts to acquire or renew the lease.",
    ),
)

_MONITORING = (
    _option(
        "--metrics-bind-address",
        type=BindAddress(),
        default=lambda: _default_address(":8080"),
        show_default=":8080 in a cluster, else 0",
        help="Address of /metrics; 0 disables it.",
    ),
    _option(
        "--health-probe-bind-address",
        type=BindAddress(),
        default=lambda: _default_address(":8081"),
        show_default=":8081 in a cluster, else 0",
        help="Address of /healthz and /readyz; 0 disables them.",
    ),
)


_IGNORED = tuple(
    click.option(name, expose_value=False, is_flag=False, flag_value="true", hidden=True)
    for name in ("--zap-devel", "--zap-stacktrace-level", "--zap-time-encoding")
)
"""Logging flags of upstream manifests that are accepted and ignored."""


def operator_flags(command: F) -> F:
    """Add all flags; the command receives their values under the names of the settings."""
    flags: list[Callable[[F], F]] = [
        *_BEHAVIOUR,
        *_THROUGHPUT,
        *_ELECTION,
        *_MONITORING,
        *WEBHOOK_FLAGS,
        *_IGNORED,
    ]
    return reduce(lambda decorated, add: add(decorated), reversed(flags), command)
