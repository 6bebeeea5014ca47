"""Explains gangs and pods of a live cluster: ``gangline explain``, and the dashboard."""

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain

from gangline.api.core.node import Node
from gangline.api.job_names import unserved_message
from gangline.api.resources import PODS
from gangline.api.volcano.scheduling import GROUP_NAME_ANNOTATION
from gangline.api.volcano.topology import HyperNode
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import NotFound
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.cache.convert import DEFAULT_SCHEDULER, hypernode_info, node_info
from gangline.scheduler.cache.node_table import topology_domains
from gangline.scheduler.cycle.cycle import run_cycle
from gangline.scheduler.forecast import pending_queues, queue_lines
from gangline.scheduler.reporting.explain import (
    WAITS,
    Explanation,
    QueueUsage,
    all_queue_usages,
    explain_group,
    explain_pod,
    with_expected_start,
)
from gangline.scheduler.reporting.replay import read_cluster_state
from gangline.scheduler.settings import SchedulerSettings
from gangline.scheduler.types import GroupKey, PodKey, gang_name, is_kubernetes_group

NO_SCHEDULER = "NoScheduler"
"""Reason of a gang with a pod that no scheduler has looked at."""


async def explain_live(
    client: ApiClient,
    settings: SchedulerSettings,
    namespace: str,
    pods: Sequence[str],
    *,
    groups: Sequence[GroupKey] = (),
    forecast: bool = True,
) -> list[Explanation]:
    """Explain pods of a namespace with the gangs that they belong to, and further gangs.

    Args:
        client: reads the cluster; nodes and pods must be readable.
        settings: the settings of the scheduler.
        namespace: the namespace of the pods.
        pods: names of pods.
        groups: further gangs.
        forecast: simulate when a pending gang starts.

    Raises:
        ApiError: a pod does not exist, or the cluster cannot be read.
    """
    names = set(settings.scheduler_names)
    gangs = await _read_gangs(client, namespace, pods, groups, settings, names)
    options = (settings.weights, settings.hierarchical)
    state = await read_cluster_state(client, frozenset(names), *options)
    return _explain(state, settings, namespace, pods, gangs, forecast=forecast)


async def explain_jobs(
    client: ApiClient,
    settings: SchedulerSettings,
    jobs: Mapping[str, tuple[str, Sequence[str]]],
    *,
    forecast: bool = True,
) -> dict[str, list[Explanation]]:
    """Explain the pods of several jobs, as ``explain_live``, by one reading of the cluster.

    Args:
        client: as above.
        settings: as above.
        jobs: namespace and names of the pods of each job, by any key.
        forecast: as above.

    Raises:
        ApiError: the cluster cannot be read. A job of which a pod is gone is left out.
    """
    names = set(settings.scheduler_names)
    gangs: dict[str, _Gangs] = {}
    for job, (namespace, pods) in jobs.items():
        with suppress(NotFound):
            gangs[job] = await _read_gangs(client, namespace, pods, (), settings, names)
    options = (settings.weights, settings.hierarchical)
    state = await read_cluster_state(client, frozenset(names), *options)
    return {
        job: _explain(state, settings, *jobs[job], of_job, forecast=forecast)
        for job, of_job in gangs.items()
    }


@dataclass(frozen=True, slots=True)
class _Gangs:
    """The gangs of some pods."""

    keys: list[GroupKey]
    unserved: dict[str, str]
    """Why a pod waits that no scheduler has looked at, by ``namespace/name``."""


async def _read_gangs(
    client: ApiClient,
    namespace: str,
    pods: Sequence[str],
    groups: Sequence[GroupKey],
    settings: SchedulerSettings,
    scheduler_names: set[str],
) -> _Gangs:
    """Return ``groups`` and those that pods name; add the names of the pods' schedulers."""
    keys, unserved = list(groups), {}
    for name in pods:
        pod = await client.get(PODS, name, namespace)
        scheduler = pod.spec.scheduler_name or DEFAULT_SCHEDULER
        scheduler_names.add(scheduler)
        if scheduler not in settings.scheduler_names:
            unserved[f"{namespace}/{name}"] = unserved_message(
                scheduler, pod.spec.node_name, pod.status.conditions
            )
        group = pod.metadata.annotations.get(GROUP_NAME_ANNOTATION)
        if group and (key := GroupKey(f"{namespace}/{group}")) not in keys:
            keys.append(key)
    return _Gangs(keys, unserved)


def _explain(
    state: SchedulerCache,
    settings: SchedulerSettings,
    namespace: str,
    pods: Sequence[str],
    gangs: _Gangs,
    *,
    forecast: bool,
) -> list[Explanation]:
    keys, now, policy = list(gangs.keys), time.time(), settings.policy
    present = [
        state.pods[pod_key]
        for name in pods
        if (pod_key := PodKey(f"{namespace}/{name}")) in state.pods
    ]
    # Annotations of pods may describe a gang without a PodGroup.
    keys += sorted(
        {
            pod.group
            for pod in present
            if pod.group and (pod.implied_group or is_kubernetes_group(pod.group))
        }
        - set(keys)
    )
    explained = [explain_group(state, key, now, policy) for key in keys]
    if not keys:
        explained = [explain_pod(state, pod.key, now, policy) for pod in present]
    if forecast:
        explained = [with_expected_start(one, state, now, policy) for one in explained]
    return [_as_unserved(explanation, gangs.unserved) for explanation in explained]


def _as_unserved(explained: Explanation, unserved: Mapping[str, str]) -> Explanation:
    """Return the explanation of a gang with a pod that no scheduler has looked at."""
    pods = chain(explained.starting, *(need.pods for need in explained.needs))
    message = next(filter(None, (unserved.get(pod, "") for pod in pods)), "")
    if not message:
        return explained
    return replace(
        explained, state=WAITS, reason=NO_SCHEDULER, message=message, starting={}, expected=None
    )


@dataclass(frozen=True, slots=True)
class WaitingGang:
    """A gang in the line of its queue."""

    name: str
    """``namespace/name`` of the pod group, or of a pod without one."""
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class QueueReport:
    """The amounts of a queue, and its line."""

    usage: QueueUsage
    line: tuple[WaitingGang, ...]
    """The first is served first."""


async def report_queues(client: ApiClient, settings: SchedulerSettings) -> dict[str, QueueReport]:
    """Return the amounts and the line of each queue, by its name.

    Raises:
        ApiError: the cluster cannot be read.
    """
    options = (settings.scheduler_names, settings.weights, settings.hierarchical)
    state = await read_cluster_state(client, *options)
    lines = queue_lines(run_cycle(state, time.time(), settings.policy), pending_queues(state))
    return {
        name: QueueReport(
            usage,
            tuple(
                WaitingGang(gang_name(gang), verdict.reason, verdict.message)
                for gang, verdict in lines.get(name, ())
            ),
        )
        for name, usage in all_queue_usages(state).items()
    }


def network_domains(
    hypernodes: Iterable[HyperNode], nodes: Iterable[Node]
) -> list[tuple[str, int, list[str]]]:
    """Return name, tier and nodes of each network domain, the closest tier first."""
    infos = [node_info(node) for node in nodes]
    described = {one.metadata.name: hypernode_info(one) for one in hypernodes}
    return [
        (domain.name, domain.tier, [str(infos[row].name) for row in domain.rows.nonzero()[0]])
        for domain in topology_domains(described, infos)
    ]
