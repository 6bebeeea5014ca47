"""Trial placement: how many pods more of a running gang would get nodes now.

The scheduler's own cycle runs on a copy of the cluster's state to which the pods are added: so
their CPU, memory and devices, the limits of their queue, quotas, and gangs that wait all count.
Nothing is created.
"""

import time
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from gangline.kube.client.client import ApiClient
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.cycle.cycle import DEFAULT_POLICY
from gangline.scheduler.preemption.preempt import EvictionPolicy
from gangline.scheduler.reporting.explain import explain_group
from gangline.scheduler.reporting.replay import read_cluster_state, read_deployed_settings
from gangline.scheduler.types import GroupKey, PodInfo, PodKey


class PossibleGrowth(NamedTuple):
    """The number of added pods that get nodes, and why the others do not."""

    pods: int
    why: str = ""


def try_growth(
    state: SchedulerCache,
    key: GroupKey,
    role: str,
    count: int,
    now: float,
    policy: EvictionPolicy = DEFAULT_POLICY,
) -> PossibleGrowth:
    """Add ``count`` pods like those of a role to a state, and return how many get nodes.

    Pods for which others would have to be evicted do not count. All are assumed to fit if the role
    has no pod that runs.
    """
    members = state.members.get(key, {}).values()
    running = [pod for pod in members if pod.role.lower() == role and pod.holds_resources]
    if not running:
        return PossibleGrowth(count)
    added = [_copy_of(running[0], number, now) for number in range(count)]
    for pod in added:
        state.set_pod(pod)
    explained = explain_group(state, key, now, policy)
    pods = sum(str(pod.key) in explained.starting for pod in added)
    # Its further sentences are about the gang as it is.
    return PossibleGrowth(pods, explained.message.partition(". ")[0].rstrip("."))


async def read_growth(
    client: ApiClient, group: str, role: str, count: int, names: frozenset[str] = frozenset()
) -> PossibleGrowth:
    """Read the cluster, and try the growth of a gang (``namespace/name``).

    Args:
        names: the scheduler names whose pods are scheduled; empty: those of the deployed scheduler.

    Raises:
        ApiError: nodes or pods cannot be read.
        ValueError: the scheduler's configuration cannot be read.
    """
    settings = await read_deployed_settings(client)
    answers_to = names or frozenset(settings.scheduler_names)
    state = await read_cluster_state(client, answers_to, settings.weights, settings.hierarchical)
    return try_growth(state, GroupKey(group), role, count, time.time(), settings.policy)


def _copy_of(pod: PodInfo, number: int, now: float) -> PodInfo:
    name = f"{pod.key}-trial-{number}"
    return msgspec.structs.replace(
        pod,
        key=PodKey(name),
        uid=name,
        created=datetime.fromtimestamp(now, UTC),
        node=None,
        phase="Pending",
        started_at=0.0,
        is_ours=True,
    )
