"""Gangs that annotations of pods describe, as Volcano's controller of pod groups would create them.

A pod that names no PodGroup in ``scheduling.k8s.io/group-name`` may state its queue, and the size
of its gang. The pods of one owner (a Job, a ReplicaSet) are one gang then; without an owner a pod
is alone. No PodGroup is written: the gang exists in the cache while it has pods.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import lru_cache

import msgspec

from gangline.api.meta.objects import ObjectMeta
from gangline.api.quantity import QuantityError
from gangline.api.resource_list import parse_resource
from gangline.api.volcano.scheduling import (
    DEFAULT_QUEUE,
    GROUP_MIN_MEMBER_ANNOTATION,
    GROUP_MIN_RESOURCES_ANNOTATION,
    GROUP_NAME_ANNOTATION,
    QUEUE_NAME_ANNOTATION,
    VOLCANO_GROUP_NAME_ANNOTATION,
)
from gangline.scheduler.types.types import GroupKey, ImpliedGroup, PodGroupInfo, PodInfo
from gangline.scheduler.types.wire import IMPLIED_GROUP_ANNOTATIONS

MAX_MEMBERS = 100_000
"""Larger minimums are ignored, like those that are not numbers."""
PREFIX = "podgroup-"
"""Volcano's prefix of the names of such gangs."""


def read_group(metadata: ObjectMeta) -> tuple[GroupKey | None, ImpliedGroup | None]:
    """Return the gang of a pod, and what its annotations say about it."""
    annotations = metadata.annotations
    named = annotations.get(GROUP_NAME_ANNOTATION)
    if named:
        return GroupKey(f"{metadata.namespace}/{named}"), None
    described = not IMPLIED_GROUP_ANNOTATIONS.isdisjoint(annotations)
    named = annotations.get(VOLCANO_GROUP_NAME_ANNOTATION)
    if named:
        # Without a size the PodGroup decides: a member must not start alone before it exists.
        has_size = GROUP_MIN_MEMBER_ANNOTATION in annotations
        implied = _implied_group(annotations) if has_size else None
        return GroupKey(f"{metadata.namespace}/{named}"), implied
    if not described:
        return None, None
    owner = metadata.controller
    uid = owner.uid if owner is not None else metadata.uid
    return GroupKey(f"{metadata.namespace}/{PREFIX}{uid}"), _implied_group(annotations)


def implied_group_info(key: GroupKey, members: Iterable[PodInfo]) -> PodGroupInfo | None:
    """Return the gang that its members describe; None: none of them does.

    The oldest member decides, so that the order of arrival does not matter.
    """
    described = [pod for pod in members if pod.implied_group is not None]
    first = min(described, key=lambda pod: (pod.created, pod.key), default=None)
    if first is None or first.implied_group is None:
        return None
    return PodGroupInfo(
        key=key,
        min_member=first.implied_group.min_member,
        queue=first.implied_group.queue,
        priority=first.priority,
        priority_class=first.quota_attributes.priority_class or "",
        created=first.created,
        min_resources=first.implied_group.min_resources,
    )


def _implied_group(annotations: Mapping[str, str]) -> ImpliedGroup:
    return _parsed(
        annotations.get(QUEUE_NAME_ANNOTATION, ""),
        annotations.get(GROUP_MIN_MEMBER_ANNOTATION, ""),
        annotations.get(GROUP_MIN_RESOURCES_ANNOTATION, ""),
    )


@lru_cache(maxsize=4096)
def _parsed(queue: str, min_member: str, min_resources: str) -> ImpliedGroup:
    """Return one object for equal annotations: there may be very many pods."""
    count = 1
    with suppress(ValueError):
        count = int(min_member or 1)
    amounts: dict[str, int] = {}
    with suppress(msgspec.DecodeError, QuantityError):
        written = msgspec.json.decode(min_resources or "{}", type=dict[str, str | int | float])
        amounts = {name: max(0, parse_resource(name, value)) for name, value in written.items()}
    size = count if 0 < count <= MAX_MEMBERS else 1
    return ImpliedGroup(queue or DEFAULT_QUEUE, size, tuple(sorted(amounts.items())))
