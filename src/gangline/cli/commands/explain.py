"""``explain``: why a job is pending, computed from a copy of the cluster's state, with figures.

The explanation is printed as a tree: queue, nodes of running and reserved pods, unmet requests.
"""

import textwrap
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gangline.cli.errors import CommandError, ExitCode
from gangline.cli.params import completers
from gangline.cli.params.options import output_option
from gangline.cli.params.session import ClusterSession, job_command
from gangline.cli.render.output import print_result, terminal_width

if TYPE_CHECKING:
    from gangline.kube.client.client import ApiClient
    from gangline.scheduler.cache.cache import SchedulerCache
    from gangline.scheduler.forecast.forecast import StartForecast
    from gangline.scheduler.preemption.preempt import EvictionPolicy
    from gangline.scheduler.reporting.expectation import ExpectedStart
    from gangline.scheduler.reporting.explain import Explanation, PodRequirement, QueueUsage
    from gangline.scheduler.settings import SchedulerSettings


MAX_NAMES = 6
"""Limit of names in a list; the others are counted."""


def format_explanation(explained: "Explanation") -> str:
    """Return why a gang or pod is pending, or where it runs."""
    because = f" ({explained.reason})" if explained.reason else ""
    lines = [f"{explained.kind} {explained.name} {explained.state}{because}"]
    if explained.message:
        lines += textwrap.wrap(
            explained.message,
            max(40, terminal_width() - 2),
            initial_indent="  ",
            subsequent_indent="  ",
        )
    sections = [
        _queues(explained.queues),
        _pods_by_node("Pods on nodes", explained.placed),
        _pods_by_node("Starting", explained.starting),
        _pods_by_node("Reserved nodes", explained.planned),
        *(_need(need, explained.minimum) for need in explained.needs),
    ]
    if explained.expected is not None:
        sections.insert(0, _expected(explained.expected))
    if explained.evicted_for_it:
        sections.append(["Evicted for it: " + _join_names(explained.evicted_for_it)])
    for section in sections:
        lines += _branch(section)
    return "\n".join(lines)


def _branch(section: Sequence[str]) -> Iterable[str]:
    if section:
        yield f"├─ {section[0]}"
        yield from (f"│    {line}" for line in section[1:])


def _expected(expected: "ExpectedStart") -> list[str]:
    """Return the place in line and the expected start."""
    lines = [
        f"Expected start: {format_start(expected.start)}",
        f"place {expected.place} in queue {expected.queue!r}",
    ]
    if expected.ahead:
        more = expected.place - 1 - len(expected.ahead)
        names = ", ".join(expected.ahead) + (f" and {more} more" if more > 0 else "")
        lines.append(f"ahead of it: {names}")
    lines.append(
        f"{expected.start.samples} simulations; run times are known of "
        f"{expected.known_run_times} of {expected.run_times} gangs"
    )
    lines += [f"sooner {each.change}: {format_start(each.start)}" for each in expected.sooner]
    return lines


def format_start(start: "StartForecast") -> str:
    """Return when a gang is expected to start, in words."""
    if start.earliest_s is None:
        return "not within 30 days, unless resources are freed or added"
    if start.latest_s is None:
        return f"not before {_duration(start.earliest_s)} from now; the latest time is unknown"
    if start.latest_s < 1:
        return "now"
    return (
        f"in {_duration(start.earliest_s)} to {_duration(start.latest_s)} "
        "(probability 80 %, if no gang overtakes it)"
    )


def _duration(seconds: float) -> str:
    """Return a duration in one unit, rounded to two digits."""
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            count = seconds / size
            return f"{count:.1f} {unit}" if count < 10 else f"{count:.0f} {unit}"
    return f"{seconds:.0f} s"


def _queues(queues: "Sequence[QueueUsage]") -> list[str]:
    if not queues:
        return []
    lines = ["Queue " + ", part of ".join(queue.name for queue in queues)]
    for queue in queues:
        most = f"; at most {queue.most}" if queue.most else ""
        lines.append(
            f"{queue.name}: uses {queue.used} ({queue.share:.0%} of its fair share: "
            f"{queue.entitled}); with pending pods {queue.requested}{most}"
        )
    return lines


def _pods_by_node(title: str, nodes: Mapping[str, str]) -> list[str]:
    if not nodes:
        return []
    by_node: dict[str, list[str]] = {}
    for pod, node in sorted(nodes.items()):
        by_node.setdefault(node, []).append(pod.partition("/")[2])
    lines = [f"{node}: {_join_names(pods)}" for node, pods in sorted(by_node.items())]
    return [f"{title} ({len(nodes)})", *_truncated(lines)]


def _need(need: "PodRequirement", minimum: int) -> list[str]:
    what = f"{need.role} pod" if need.role else "pod"
    together = f", {minimum} of the gang together" if minimum > 1 else ""
    title = f"Pending: {len(need.pods)} {what}(s) with {need.asked} each{together}"
    lines = [title]
    for node_class in need.nodes:
        free = f" (at most free: {node_class.most_free})" if node_class.most_free else ""
        lines.append(
            f"{len(node_class.nodes)} node(s): {node_class.why}{free}: "
            f"{_join_names(node_class.nodes)}"
        )
    return lines


def _truncated(lines: Sequence[str]) -> list[str]:
    left = len(lines) - MAX_NAMES
    return [*lines[:MAX_NAMES], f"and {left} more"] if left > 0 else list(lines)


def _join_names(names: Sequence[str]) -> str:
    left = len(names) - MAX_NAMES
    shown = ", ".join(names[:MAX_NAMES])
    return f"{shown} and {left} more" if left > 0 else shown


_GROUP_KINDS = frozenset({"podgroup", "podgroups", "pg"})
_POD_KINDS = frozenset({"pod", "pods", "po"})


@click.command("explain")
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
    if not print_result([asdict(each) for each in explanations], output):
        click.echo("\n\n".join(map(format_explanation, explanations)))


async def scheduler_settings(client: "ApiClient", path: Path | None) -> "SchedulerSettings":
    """Return the scheduler's settings, from a file or from its ConfigMap if there is one."""
    from gangline.scheduler.config.volcano import ConfigurationError, read_file  # noqa: PLC0415
    from gangline.scheduler.reporting.replay import read_deployed_settings  # noqa: PLC0415
    from gangline.scheduler.settings import SchedulerSettings  # noqa: PLC0415

    try:
        if path is None:
            return await read_deployed_settings(client)
        return read_file(path).apply_to(SchedulerSettings())
    except ConfigurationError as error:
        where = "the scheduler's ConfigMap" if path is None else "--scheduler-config"
        raise CommandError(f"{where}: {error}", code=ExitCode.USAGE) from error


async def _explain(
    cluster: ClusterSession, settings: "SchedulerSettings", name: str, *, forecast: bool
) -> "list[Explanation]":
    """Return explanations for a name."""
    from gangline.api.resources import PODS  # noqa: PLC0415
    from gangline.api.volcano.scheduling import GROUP_NAME_ANNOTATION  # noqa: PLC0415
    from gangline.scheduler.reporting.explain import explain_group, explain_pod  # noqa: PLC0415
    from gangline.scheduler.reporting.replay import read_cluster_state  # noqa: PLC0415
    from gangline.scheduler.types.types import GroupKey, PodKey  # noqa: PLC0415

    client, namespace = cluster.client, cluster.namespace
    groups, pods = await _subjects(cluster, name)
    names = set(settings.scheduler_names)
    for each in pods:
        pod = await client.get(PODS, each, namespace)
        names.add(pod.spec.scheduler_name or "default-scheduler")
        group = pod.metadata.annotations.get(GROUP_NAME_ANNOTATION)
        if group and group not in groups:
            groups.append(group)
    options = (settings.weights, settings.hierarchical)
    state = await read_cluster_state(client, frozenset(names), *options)
    now, policy = time.time(), settings.policy
    found = [
        state.pods[key] for each in pods if (key := PodKey(f"{namespace}/{each}")) in state.pods
    ]
    keys = [GroupKey(f"{namespace}/{each}") for each in groups]
    # Annotations of pods may describe a gang without a PodGroup.
    keys += sorted({pod.group for pod in found if pod.implied_group and pod.group} - set(keys))
    explained = [explain_group(state, key, now, policy) for key in keys]
    if not keys:
        explained = [explain_pod(state, pod.key, now, policy) for pod in found]
    if not forecast:
        return explained
    return [with_forecast(each, state, now, policy) for each in explained]


def with_forecast(
    explained: "Explanation", state: "SchedulerCache", now: float, policy: "EvictionPolicy"
) -> "Explanation":
    """Return an explanation with the expected start, if the gang is pending."""
    from gangline.scheduler.reporting.expectation import expected_start  # noqa: PLC0415
    from gangline.scheduler.reporting.explain import WAITS  # noqa: PLC0415

    if explained.state != WAITS:
        return explained
    return replace(explained, expected=expected_start(state, explained.name, now, policy))


async def _subjects(cluster: ClusterSession, name: str) -> tuple[list[str], list[str]]:
    """Return the names of the pod groups and of the pods that ``name`` means."""
    from gangline.api.resources import POD_GROUPS, PODS  # noqa: PLC0415
    from gangline.kube.errors import NotFound  # noqa: PLC0415
    from gangline.sdk.client import NoSuchJob  # noqa: PLC0415

    client, namespace = cluster.client, cluster.namespace
    kind, _, rest = name.rpartition("/")
    if kind in _GROUP_KINDS:
        await client.get(POD_GROUPS, rest, namespace)
        return [rest], await _group_members(client, rest, namespace)
    if kind in _POD_KINDS:
        return [], [(await client.get(PODS, rest, namespace)).metadata.name]
    try:
        job = await cluster.jobs.get(rest, namespace)
    except NoSuchJob:
        for kind, resource in (("podgroup", POD_GROUPS), ("pod", PODS)):
            with suppress(NotFound):
                await client.request_json("GET", resource.path(namespace, rest))
                return await _subjects(cluster, f"{kind}/{rest}")
        raise
    pods = [replica.name for replica in job.replicas]
    if not pods:
        raise CommandError(
            f"job {rest!r} has no pods: it {_no_pods_reason(str(job.state))}",
            hint=job.reason,
            code=ExitCode.NOT_FOUND,
        )
    return [], pods


def _no_pods_reason(state: str) -> str:
    return f"is {state.lower()}, and the operator has created none" if state else "has not started"


async def _group_members(client: "ApiClient", group: str, namespace: str) -> list[str]:
    from gangline.api.volcano.scheduling import GROUP_NAME_ANNOTATION  # noqa: PLC0415
    from gangline.scheduler.types.wire import LEAN_PODS  # noqa: PLC0415

    pods = (await client.list(LEAN_PODS, namespace)).items
    return [
        pod.metadata.name
        for pod in pods
        if pod.metadata.annotations.get(GROUP_NAME_ANNOTATION) == group
    ]
