"""``explain``: why a job is pending, computed from a copy of the cluster's state, with figures."""

from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gangline.cli.errors import CommandError, ExitCode
from gangline.cli.params import completers
from gangline.cli.params.command import command
from gangline.cli.params.options import output_option
from gangline.cli.params.session import ClusterSession, job_command
from gangline.cli.render.explanation import format_explanation, scheduler_settings
from gangline.cli.render.output import print_result

if TYPE_CHECKING:
    from gangline.kube.client.client import ApiClient
    from gangline.scheduler.reporting.explain import Explanation
    from gangline.scheduler.settings import SchedulerSettings
    from gangline.scheduler.types import GroupKey


_GROUP_KINDS = frozenset({"podgroup", "podgroups", "pg"})
_POD_KINDS = frozenset({"pod", "pods", "po"})


@command(
    "explain",
    examples="""
        gangline explain digits
        gangline explain pod/digits-worker-3 --no-forecast
        gangline explain digits --scheduler-config volcano-scheduler.conf
    """,
)
@click.argument("name", metavar="JOB", shell_complete=completers.jobs)
@job_command
@click.option(
    "--scheduler-config",
    "configuration",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Configuration file of the scheduler; default: its ConfigMap in the cluster.",
)
@click.option(
    "--forecast/--no-forecast",
    default=True,
    show_default=True,
    help="Simulate when a pending job starts.",
)
@output_option("table", "json", "yaml")
async def explain_command(
    name: str,
    cluster: ClusterSession,
    configuration: Path | None,
    forecast: bool,
    output: str,
) -> None:
    """Explain why a job is pending: its queue, its requests, and what each node lacks.

    JOB is the name of a job of any kind, of a PodGroup or of a pod; 'podgroup/NAME' and 'pod/NAME'
    select the kind. The decision is computed again from the current state of the cluster; nothing
    is changed. The expected start is an interval from simulations with the known run times.
    """
    settings = await scheduler_settings(cluster.client, configuration)
    explanations = await _explain(cluster, settings, name, forecast=forecast)
    if not print_result([asdict(explanation) for explanation in explanations], output):
        click.echo("\n\n".join(map(format_explanation, explanations)))
        if stall := await _stall(cluster, name):
            click.echo(f"\n{stall}")


async def _stall(cluster: ClusterSession, name: str) -> str:
    """Return why a job that runs can never end; empty if it may."""
    from datetime import UTC, datetime

    from gangline.sdk.client import JobError
    from gangline.sdk.diagnosis import find_lost_rank

    try:
        job = await cluster.jobs.get(name, cluster.namespace)
    except JobError:
        return ""  # a pod group or a pod
    stall = find_lost_rank(job, datetime.now(UTC))
    return f"The job runs, but cannot end: {stall.meaning}\n{stall.remedy}" if stall else ""


async def _explain(
    cluster: ClusterSession, settings: "SchedulerSettings", name: str, *, forecast: bool
) -> "list[Explanation]":
    from gangline.scheduler.reporting.live import explain_live

    groups, pods = await _subjects(cluster, name)
    return await explain_live(
        cluster.client, settings, cluster.namespace, pods, groups=groups, forecast=forecast
    )


async def _subjects(cluster: ClusterSession, name: str) -> "tuple[list[GroupKey], list[str]]":
    """Return the keys of the pod groups and the names of the pods that ``name`` means."""
    from gangline.api.resources import KUBERNETES_POD_GROUPS, POD_GROUPS, PODS
    from gangline.kube.errors import NotFound
    from gangline.scheduler.types import GroupKey, kubernetes_group_key
    from gangline.sdk.client import NoSuchJob

    client, namespace = cluster.client, cluster.namespace
    kind, _, rest = name.rpartition("/")
    if kind in _GROUP_KINDS | _POD_KINDS and not rest:
        raise CommandError(f"{name!r} has no name: write {kind}/NAME", code=ExitCode.USAGE)
    if kind in _GROUP_KINDS:
        key = GroupKey(f"{namespace}/{rest}")
        try:
            await client.get(POD_GROUPS, rest, namespace)
        except NotFound as missing:
            try:
                await client.get(KUBERNETES_POD_GROUPS, rest, namespace)
            except NotFound:
                raise missing from None
            key = kubernetes_group_key(namespace, rest)
        return [key], await _group_members(client, rest, namespace)
    if kind in _POD_KINDS:
        return [], [(await client.get(PODS, rest, namespace)).metadata.name]
    try:
        job = await cluster.jobs.get(rest, namespace)
    except NoSuchJob:
        groups = (("podgroup", POD_GROUPS), ("podgroup", KUBERNETES_POD_GROUPS))
        for kind, resource in (*groups, ("pod", PODS)):
            with suppress(NotFound):
                await client.request_json("GET", resource.path(namespace, rest))
                return await _subjects(cluster, f"{kind}/{rest}")
        raise
    pods = [replica.name for replica in job.replicas]
    if not pods:
        state = str(job.state).lower()
        created = f"is {state}, and the operator has created none"
        reason = created if state else "has not started"
        raise CommandError(
            f"job {rest!r} has no pods: it {reason}",
            hint=job.reason,
            code=ExitCode.NOT_FOUND,
        )
    return [], pods


async def _group_members(client: "ApiClient", group: str, namespace: str) -> list[str]:
    from gangline.api.volcano.scheduling import GROUP_NAME_ANNOTATION
    from gangline.scheduler.wire import LEAN_PODS

    pods = (await client.list(LEAN_PODS, namespace)).items
    return [
        pod.metadata.name
        for pod in pods
        if group
        in (
            pod.metadata.annotations.get(GROUP_NAME_ANNOTATION),
            pod.spec.scheduling_group and pod.spec.scheduling_group.pod_group_name,
        )
    ]
