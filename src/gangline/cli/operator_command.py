"""``gangline operator``: the operator alone, as in a real cluster.

It accepts the flags of the upstream operators, so that their manifests work with another image.
"""

import asyncio
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gangline.cli.event_loop import serve_component
from gangline.cli.log_format import logging_options, start_logging
from gangline.cli.operator_flags import operator_flags
from gangline.cli.options import cluster_options
from gangline.cli.target import ClusterTarget
from gangline.cli.webhook_flags import build_webhook_settings

if TYPE_CHECKING:
    from gangline.kube.leader import LeaderElectionTiming
    from gangline.kube.ratelimit import TokenBucket
    from gangline.operator.settings import OperatorSettings

_OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_FALLBACK_NAMESPACE = "kube-system"
_VOLCANO = "volcano"
_TIMING = ("lease-duration", "renew-deadline", "retry-period")
_NO_GANGS = ("none", "off")


@click.command("operator")
@cluster_options
@operator_flags
@logging_options("GANGLINE_OPERATOR")
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
    from gangline.operator.main import run  # noqa: PLC0415

    settings = build_operator_settings(flags)
    limit = build_rate_limit(kube_api_qps, kube_api_burst)
    start_logging(log_level, form=log_format)

    async def connected(stop: asyncio.Event) -> None:
        async with target.connect("gangline-operator", rate_limit=limit) as client:
            await run(client, settings, stop)

    serve_component(connected)


def build_operator_settings(flags: dict[str, Any]) -> "OperatorSettings":
    """Build the settings from the values of the flags.

    Raises:
        click.BadParameter: a value is invalid; the message names the flag.
    """
    from gangline.operator.settings import GangScheduling, OperatorSettings  # noqa: PLC0415

    mode = flags.pop("gang_scheduling")
    if flags.pop("enable_gang_scheduling") is False:
        mode = "off"
    gangs, scheduler = resolve_gang_scheduling(
        mode, flags.pop("scheduler_name"), flags.pop("gang_scheduler_name")
    )
    namespaces = _flatten(flags.pop("namespaces"))
    return OperatorSettings(
        namespaces=namespaces,
        webhook=build_webhook_settings(flags, namespaces, _own_namespace()),
        kinds=_known_kinds(_flatten(flags.pop("kinds"))),
        gang_scheduling=GangScheduling(gangs),
        scheduler_name=scheduler,
        leader_election_namespace=flags.pop("leader_election_namespace") or _own_namespace(),
        leader_election_timing=_timing(
            flags.pop("lease_duration"), flags.pop("renew_deadline"), flags.pop("retry_period")
        ),
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
        case name if name in _NO_GANGS:
            return "off", scheduler
        case name if name in (_VOLCANO, scheduler):
            return mode, name
    raise click.BadParameter(
        f"{upstream!r}: pod groups are those of Volcano. Write volcano, or, for another scheduler "
        "that reads them, --scheduler-name",
        param_hint="'--gang-scheduler-name'",
    )


def build_rate_limit(per_second: float, burst: int | None) -> "TokenBucket | None":
    """Build the request limiter; None for no limit. The default burst is 1.5 times the rate."""
    from gangline.kube.ratelimit import TokenBucket  # noqa: PLC0415

    if per_second <= 0:
        return None
    return TokenBucket(per_second, burst or max(1, round(per_second * 1.5)))


def _flatten(values: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(name for value in values for name in value)


def _known_kinds(names: tuple[str, ...]) -> frozenset[str]:
    from gangline.operator.main import all_frameworks  # noqa: PLC0415
    from gangline.operator.settings import OperatorSettings  # noqa: PLC0415

    known = {each.kind.kind.lower(): each.kind.kind for each in all_frameworks(OperatorSettings())}
    unknown = [name for name in names if name.lower() not in known]
    if unknown:
        raise click.BadParameter(
            f"unknown kind {unknown[0]!r}; known kinds: {', '.join(known.values())}",
            param_hint="'--enable-scheme' / '--kind'",
        )
    return frozenset(known[name.lower()] for name in names)


def _timing(
    lease_duration: float, renew_deadline: float, retry_period: float
) -> "LeaderElectionTiming":
    from gangline.kube.leader import LeaderElectionTiming  # noqa: PLC0415

    try:
        return LeaderElectionTiming(round(lease_duration), renew_deadline, retry_period)
    except ValueError as error:
        flags = (f"'--leader-elect-{name}'" for name in _TIMING)
        raise click.BadParameter(str(error), param_hint=" / ".join(flags)) from error


def _own_namespace() -> str:
    """Return the namespace of the lease: that of the operator's pod, or else kube-system."""
    own = os.environ.get("MY_POD_NAMESPACE", "")
    if not own and _OWN_NAMESPACE.exists():
        own = _OWN_NAMESPACE.read_text(encoding="utf-8").strip()
    return own or _FALLBACK_NAMESPACE
