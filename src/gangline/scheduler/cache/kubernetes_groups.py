"""Reads PodGroups of Kubernetes (``scheduling.k8s.io``) as the same gangs as those of Volcano.

The annotations that describe a PodGroup of Volcano count on one of Kubernetes, too. Its queue is
the one that its annotation names, else that of its pods' annotation, else the default queue.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gangline.api.cluster.workload import KubernetesPodGroup
from gangline.api.meta.resource import Resource
from gangline.api.resources import KUBERNETES_POD_GROUPS, POD_GROUPS
from gangline.api.volcano.scheduling import QUEUE_NAME_ANNOTATION, PodGroup, PodGroupSpec
from gangline.scheduler.cache.convert import group_info
from gangline.scheduler.types import (
    EvictionMode,
    NetworkTopologyRule,
    PodGroupInfo,
    is_kubernetes_group,
    kubernetes_group_key,
)


def pod_group_resource(key: str) -> Resource[Any]:
    """Return the kind of the object that the key of a gang stands for."""
    return KUBERNETES_POD_GROUPS if is_kubernetes_group(key) else POD_GROUPS


def kubernetes_group_info(group: KubernetesPodGroup, priorities: Mapping[str, int]) -> PodGroupInfo:
    metadata, spec = group.metadata, group.spec
    gang, mode = spec.scheduling_policy.gang, spec.disruption_mode
    queue = metadata.annotations.get(QUEUE_NAME_ANNOTATION, "")
    # Pods of the basic policy start one by one: a gang of one that others join.
    facts = group_info(
        PodGroup(
            metadata=metadata,
            spec=PodGroupSpec(
                min_member=gang.min_count if gang is not None else 1,
                queue=queue,
                priority_class_name=spec.priority_class_name,
            ),
        ),
        priorities,
    )
    constraints = spec.scheduling_constraints
    topology = constraints.topology if constraints is not None else []
    return replace(
        facts,
        key=kubernetes_group_key(metadata.namespace, metadata.name),
        priority=facts.priority if spec.priority is None else spec.priority,
        network=NetworkTopologyRule(label=topology[0].key) if topology else None,
        evicted=EvictionMode.ALL
        if mode is not None and mode.all is not None
        else EvictionMode.SINGLE,
        has_queue_of_pods=not queue,
    )
