"""Explains gangs and pods of a live cluster: ``gangline explain``, and the dashboard."""

import time
from collections.abc import Sequence

from gangline.api.resources import PODS
from gangline.api.volcano.scheduling import GROUP_NAME_ANNOTATION
from gangline.kube.client.client import ApiClient
from gangline.scheduler.reporting.explain import (
    Explanation,
    explain_group,
    explain_pod,
    with_expected_start,
)
from gangline.scheduler.reporting.replay import read_cluster_state
from gangline.scheduler.settings import SchedulerSettings
from gangline.scheduler.types import GroupKey, PodKey, is_kubernetes_group


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
    keys = list(groups)
    names = set(settings.scheduler_names)
    for name in pods:
        pod = await client.get(PODS, name, namespace)
        names.add(pod.spec.scheduler_name or "default-scheduler")
        group = pod.metadata.annotations.get(GROUP_NAME_ANNOTATION)
        if group and (key := GroupKey(f"{namespace}/{group}")) not in keys:
            keys.append(key)
    options = (settings.weights, settings.hierarchical)
    state = await read_cluster_state(client, frozenset(names), *options)
    now, policy = time.time(), settings.policy
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
    if not forecast:
        return explained
    return [with_expected_start(explanation, state, now, policy) for explanation in explained]
