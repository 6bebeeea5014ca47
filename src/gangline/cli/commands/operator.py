"""``gangline operator``: the operator alone, as in a real cluster, with its webhook.

It accepts the flags of the upstream operators, so that their manifests work with another image.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import click

from gangline.cli.component_logging import logging_options, start_logging
from gangline.cli.params.command import OPTIONS, command, section
from gangline.cli.params.component_options import (
    BindAddress,
    CommaSeparated,
    Duration,
    election_timing_options,
    env_flag,
    env_option,
    monitoring_options,
    own_namespace,
    take_election_timing,
)
from gangline.cli.params.options import cluster_options
from gangline.cli.params.target import ClusterTarget

if TYPE_CHECKING:
    from gangline.kube.rate_limit import TokenBucket
    from gangline.operator.settings import OperatorSettings
    from gangline.operator.webhook.settings import WebhookSettings


F = TypeVar("F", bound=Callable[..., Any])

PREFIX = "GANGLINE_OPERATOR"
_option = partial(env_option, PREFIX)


def _check_url(_: click.Context, __: click.Parameter, value: str) -> str:
    """Refuse URLs that no API server would call."""
    try:
        parts = urlsplit(value)
        plain = not (parts.query or parts.fragment or parts.username or parts.password)
        parts.port  # noqa: B018
        fits = parts.scheme == "https" and parts.hostname and plain
    except ValueError:
        fits = False
    if value and not fits:
        raise click.BadParameter(f"{value!r} is not an https URL; write https://10.0.0.5:9443")
    return value


_WEBHOOK_FLAGS = section(
    "Webhook",
    _option(
        "--webhook",
        type=click.Choice(["on", "off"]),
        default="off",
        show_default=True,
        help="Serve an admission webhook that refuses invalid jobs.",
    ),
    _option(
        "--webhook-bind-address",
        type=BindAddress(),
        default=":9443",
        show_default=True,
        help="Address of the webhook server.",
    ),
    _option(
        "--webhook-service",
        default="gangline-operator",
        show_default=True,
        help="Service of the webhook, with port 443.",
    ),
    _option(
        "--webhook-url",
        default="",
        callback=_check_url,
        help="Instead of a service: https URL of an operator outside the cluster.",
    ),
    _option(
        "--webhook-namespace",
        default="",
        help="Namespace of service and secret; default: the operator's own (MY_POD_NAMESPACE).",
    ),
    _option(
        "--webhook-secret",
        default="gangline-operator-webhook",
        show_default=True,
        help="Secret with the certificate that replicas share; it is created and renewed.",
    ),
    _option(
        "--webhook-configuration",
        default="gangline-operator",
        show_default=True,
        help="Name of both webhook configurations, which are created.",
    ),
    _option(
        "--webhook-failure-policy",
        type=click.Choice(["Ignore", "Fail"], case_sensitive=False),
        default="Ignore",
        show_default=True,
        help="While no replica answers: accept jobs unchecked, or refuse them.",
    ),
    _option(
        "--webhook-queue-access",
        type=click.Choice(["on", "off"]),
        default="off",
        show_default=True,
        help="Require the verb 'use' on the queue of a job.",
    ),
    _option(
        "--webhook-progress",
        type=click.Choice(["on", "off"]),
        default="off",
        show_default=True,
        help="Let pods report the progress of their job.",
    ),
    _option(
        "--feature-gates",
        type=CommaSeparated(),
        hidden=True,
        help="Flag of Kubeflow Trainer: TrainJobStatus=true is --webhook-progress on.",
    ),
)


def build_webhook_settings(
    flags: dict[str, Any], namespaces: tuple[str, ...], own_namespace: str
) -> "WebhookSettings | None":
    """Remove the webhook's flags from ``flags`` and build its settings; None if it is off.

    Raises:
        click.BadParameter: a value is invalid; the message names the flag.
    """
    from gangline.kube.probes import Address
    from gangline.operator.webhook.settings import FailurePolicy, WebhookSettings

    on = flags.pop("webhook") == "on"
    address: Address | None = flags.pop("webhook_bind_address")
    url = flags.pop("webhook_url")
    gates = flags.pop("feature_gates") or ()
    progress = flags.pop("webhook_progress") == "on" or "TrainJobStatus=true" in gates
    settings = WebhookSettings(
        url=url,
        service=flags.pop("webhook_service"),
        namespace=flags.pop("webhook_namespace") or own_namespace,
        secret=flags.pop("webhook_secret"),
        configuration=flags.pop("webhook_configuration"),
        failure_policy=FailurePolicy(flags.pop("webhook_failure_policy")),
        address=address or Address("", 0),
        namespaces=namespaces,
        queue_access=flags.pop("webhook_queue_access") == "on",
        progress=progress,
    )
    if not on and (settings.queue_access or settings.progress):
        hint = "'--webhook-queue-access'" if settings.queue_access else "'--webhook-progress'"
        raise click.BadParameter("it requires --webhook on", param_hint=hint)
    if not on:
        return None
    if not settings.address.port and not url:
        hint = "'--webhook-bind-address'"
        raise click.BadParameter("a service requires a port", param_hint=hint)
    return settings


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
        "--pod-groups",
        type=click.Choice(["volcano", "kubernetes"]),
        default="volcano",
        show_default=True,
        help="PodGroups of Volcano, or of scheduling.k8s.io (Kubernetes 1.37, GenericWorkload).",
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

_THROUGHPUT = section(
    "Throughput",
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

_ELECTION = section(
    "Leader election",
    env_flag(
        PREFIX,
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
    *election_timing_options(_option),
)

_IGNORED = tuple(
    click.option(name, expose_value=False, is_flag=False, flag_value="true", hidden=True)
    for name in ("--zap-devel", "--zap-stacktrace-level", "--zap-time-encoding")
)
"""Logging flags of upstream manifests that are accepted and ignored."""


def operator_flags(command: F) -> F:
    """Add all flags; the command receives their values under the names of the settings."""
    monitoring = section("Logs, metrics and probes", *monitoring_options(_option))
    flags = (*_BEHAVIOUR, _THROUGHPUT, _ELECTION, monitoring, _WEBHOOK_FLAGS, *_IGNORED)
    return section(OPTIONS, *flags)(command)


@command(
    "operator",
    examples="""
        gangline operator --leader-elect --webhook on
        gangline operator -n research --kind PyTorchJob --kind MPIJob
    """,
)
@cluster_options
@operator_flags
@logging_options(PREFIX)
def operator_command(
    target: ClusterTarget,
    log_level: str,
    log_format: str,
    kube_api_qps: float,
    kube_api_burst: int | None,
    **flags: Any,
) -> None:
    """Run the operator: it creates the pods, services and pod groups of training jobs.

    Each flag can also be set in the environment: GANGLINE_OPERATOR_KUBE_API_QPS=50.
    """
    from gangline.operator.main import run

    settings = build_operator_settings(flags)
    limit = build_rate_limit(kube_api_qps, kube_api_burst)
    start_logging(log_level, form=log_format)
    target.serve(
        "gangline-operator", lambda client, stop: run(client, settings, stop), rate_limit=limit
    )


def build_operator_settings(flags: dict[str, Any]) -> "OperatorSettings":
    """Build the settings from the values of the flags.

    Raises:
        click.BadParameter: a value is invalid; the message names the flag.
    """
    from gangline.operator.settings import GangScheduling, OperatorSettings, PodGroupKind

    mode = flags.pop("gang_scheduling")
    if flags.pop("enable_gang_scheduling") is False:
        mode = "off"
    gangs, scheduler = resolve_gang_scheduling(
        mode, flags.pop("scheduler_name"), flags.pop("gang_scheduler_name")
    )
    namespaces = _flatten(flags.pop("namespaces"))
    return OperatorSettings(
        namespaces=namespaces,
        webhook=build_webhook_settings(flags, namespaces, own_namespace()),
        kinds=_known_kinds(_flatten(flags.pop("kinds"))),
        gang_scheduling=GangScheduling(gangs),
        pod_groups=PodGroupKind(flags.pop("pod_groups")),
        scheduler_name=scheduler,
        leader_election_namespace=flags.pop("leader_election_namespace") or own_namespace(),
        leader_election_timing=take_election_timing(flags),
        resync_s=flags.pop("resync_period") or None,
        metrics_address=flags.pop("metrics_bind_address"),
        health_address=flags.pop("health_probe_bind_address"),
        **flags,
    )


def resolve_gang_scheduling(mode: str, scheduler: str, upstream: str) -> tuple[str, str]:
    """Return the gang mode and the scheduler name, with upstream's flag applied.

    Raises:
        click.BadParameter: upstream's flag names a scheduler with another kind of pod group.
    """
    match upstream.lower():
        case "":
            return mode, scheduler
        case "none" | "off":
            return "off", scheduler
        case name if name in ("volcano", scheduler):
            return mode, name
    raise click.BadParameter(
        f"{upstream!r}: pod groups are those of Volcano. Write volcano, or, for another scheduler "
        "that reads them, --scheduler-name",
        param_hint="'--gang-scheduler-name'",
    )


def build_rate_limit(per_second: float, burst: int | None) -> "TokenBucket | None":
    """Build the request limiter; None for no limit. The default burst is 1.5 times the rate."""
    from gangline.kube.rate_limit import TokenBucket

    if per_second <= 0:
        return None
    return TokenBucket(per_second, burst or max(1, round(per_second * 1.5)))


def _flatten(values: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(name for value in values for name in value)


def _known_kinds(names: tuple[str, ...]) -> frozenset[str]:
    from gangline.operator.main import all_frameworks
    from gangline.operator.settings import OperatorSettings

    identities = [framework.kind.identity for framework in all_frameworks(OperatorSettings())]
    by_lower_name = {identity.lower(): identity for identity in identities}
    unknown = [name for name in names if name.lower() not in by_lower_name]
    if unknown:
        raise click.BadParameter(
            f"unknown kind {unknown[0]!r}; known kinds: {', '.join(by_lower_name.values())}",
            param_hint="'--enable-scheme' / '--kind'",
        )
    return frozenset(by_lower_name[name.lower()] for name in names)
