"""The flags of ``gangline operator``, by what they are about."""

import os
from collections.abc import Callable
from functools import partial, reduce
from typing import Any, TypeVar

import click

from gangline.cli.setting import BindAddress, Duration, Names, setting, switch
from gangline.cli.webhook_flags import WEBHOOK_FLAGS

F = TypeVar("F", bound=Callable[..., Any])

PREFIX = "GANGLINE_OPERATOR"

_setting = partial(setting, PREFIX)
_switch = partial(switch, PREFIX)


def _in_cluster(address: str) -> str:
    """Serve probes by default where a kubelet asks for them, and nothing on a desk."""
    return address if os.environ.get("KUBERNETES_SERVICE_HOST") else "0"


_WHAT = (
    _setting(
        "--namespace",
        "-n",
        "namespaces",
        type=Names(),
        multiple=True,
        upstream="KUBEFLOW_NAMESPACE",
        help="Look after this namespace only; may be repeated. Rights in these are enough.",
    ),
    _setting(
        "--enable-scheme",
        "--kind",
        "kinds",
        type=Names(),
        multiple=True,
        help="Run this kind, such as PyTorchJob, in any capitals; may be repeated. All by default.",
    ),
    _setting(
        "--gang-scheduling",
        type=click.Choice(["auto", "off"]),
        default="auto",
        show_default=True,
        help="Make a PodGroup for each job as soon as the cluster knows PodGroups, or never.",
    ),
    _setting(
        "--enable-gang-scheduling",
        type=bool,
        is_flag=False,
        flag_value="true",
        hidden=True,
        help="As MSJob's operator has it: =false for no gangs.",
    ),
    _setting(
        "--scheduler-name",
        default="gangline",
        show_default=True,
        help="Scheduler of a gang's pods whose template names none.",
    ),
    _setting(
        "--gang-scheduler-name",
        "--scheduling",
        "gang_scheduler_name",
        default="",
        help="As upstream has it: volcano for gangs and Volcano's scheduler; none for no gangs.",
    ),
    _setting(
        "--pytorch-init-container-image",
        "init_image",
        default="",
        help="Image in which PyTorch workers wait for the master's name; without one they do not.",
    ),
    _setting(
        "--paddle-init-container-image",
        "--initImage",
        "paddle_init_image",
        default="",
        help="Image in which Paddle's pods wait for each other's names; without one they do not.",
    ),
    _setting(
        "--paddle-etcd-server",
        "--etcd-server",
        "paddle_etcd_server",
        default="",
        help="host:port of the etcd in which elastic Paddle workers meet.",
    ),
    _setting(
        "--master-image",
        "elastic_master_image",
        default="",
        help="Image of the masters of ElasticJobs; without one they run in that of the workers.",
    ),
    _setting(
        "--mpi-kubectl-delivery-image",
        "mpi_kubectl_image",
        default="",
        help="Image that brings kubectl into MPI launchers; without one they do without.",
    ),
    _setting(
        "--cluster-domain",
        default="",
        upstream="CUSTOM_CLUSTER_DOMAIN",
        help="Appended to the addresses in TF_CONFIG, such as cluster.local.",
    ),
)

_SPEED = (
    _setting(
        "--controller-threads",
        "--workers",
        "workers",
        type=click.IntRange(min=1),
        default=256,
        show_default=True,
        help="Jobs looked at at the same time, over all kinds.",
    ),
    _setting(
        "--kube-api-qps",
        type=float,
        default=0.0,
        help="Requests a second to the API server in the long run; 0, the default, for no limit.",
    ),
    _setting(
        "--kube-api-burst",
        type=click.IntRange(min=1),
        help="Requests at once under --kube-api-qps; half as many again as these if not given.",
    ),
    _setting(
        "--resync-period",
        type=Duration(),
        default="10h",
        show_default=True,
        help="Look at every job this often though nothing has changed; 0 for never.",
    ),
)

_ELECTION = (
    _switch(
        "--leader-elect",
        "leader_election",
        help="Work only while holding the lease: for several copies.",
    ),
    _setting(
        "--leader-election-id",
        "leader_election_name",
        default="gangline-operator",
        show_default=True,
        help="Name of the lease.",
    ),
    _setting(
        "--leader-election-namespace",
        default="",
        help="Namespace of the lease; the operator's own (MY_POD_NAMESPACE), else kube-system.",
    ),
    _setting(
        "--leader-elect-lease-duration",
        "lease_duration",
        type=Duration(),
        default="15s",
        show_default=True,
        help="Unchanged for this long, the lease is free to take.",
    ),
    _setting(
        "--leader-elect-renew-deadline",
        "renew_deadline",
        type=Duration(),
        default="10s",
        show_default=True,
        help="A leader that could not renew for this long stops.",
    ),
    _setting(
        "--leader-elect-retry-period",
        "retry_period",
        type=Duration(),
        default="2s",
        show_default=True,
        help="Between two looks at the lease, or two renewals.",
    ),
)

_WATCHING_IT = (
    _setting(
        "--metrics-bind-address",
        type=BindAddress(),
        default=lambda: _in_cluster(":8080"),
        show_default=":8080 in a cluster, else 0",
        help="Serve /metrics here; 0 for nowhere.",
    ),
    _setting(
        "--health-probe-bind-address",
        type=BindAddress(),
        default=lambda: _in_cluster(":8081"),
        show_default=":8081 in a cluster, else 0",
        help="Serve /healthz and /readyz here; 0 for nowhere.",
    ),
)


_WITHOUT_MEANING = tuple(
    click.option(name, expose_value=False, is_flag=False, flag_value="true", hidden=True)
    for name in ("--zap-devel", "--zap-stacktrace-level", "--zap-time-encoding")
)
"""What upstream's manifests may say of their logs and is of no use here."""


def operator_flags(command: F) -> F:
    """Add all flags; the command gets their values under the names of the settings."""
    flags: list[Callable[[F], F]] = [
        *_WHAT,
        *_SPEED,
        *_ELECTION,
        *_WATCHING_IT,
        *WEBHOOK_FLAGS,
        *_WITHOUT_MEANING,
    ]
    return reduce(lambda made, add: add(made), reversed(flags), command)
